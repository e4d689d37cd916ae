"""Cases of decoders whose feed-forward layers have experts, and whose mixers are attention."""

from tests.goldens.shared_options import GLOBAL, GRANITE, LATENT, LOCAL, NO_TOKENS, SMALL, YARN, rope

EXPERTS: dict[str, tuple[str, dict]] = {
    "mixtral": ("Mixtral", SMALL | {
        "hidden_size": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "rope_parameters": rope(1e4),
    }),
    "qwen3_moe": ("Qwen3Moe", SMALL | {
        "num_hidden_layers": 3, "hidden_size": 16, "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 2,
        "norm_topk_prob": True, "moe_intermediate_size": 20, "mlp_only_layers": [0], "rope_parameters": rope(1e3),
    }),
    "qwen2_moe": ("Qwen2Moe", SMALL | {
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 32,
        "rope_parameters": rope(1e3), "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1,
        "num_hidden_layers": 2,
    }),
    "glm4_moe": ("Glm4Moe", SMALL | {
        "head_dim": 12, "rms_norm_eps": 1e-2, "attention_bias": True, "use_qk_norm": True, "n_routed_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 20, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5, "rope_parameters": rope(1e3, partial_rotary_factor=0.67),
    }),
    "dots1": ("Dots1", SMALL | {
        "head_dim": 12, "rms_norm_eps": 1e-2, "n_routed_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 20, "n_shared_experts": 2, "first_k_dense_replace": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "sliding_window": 7, "max_window_layers": 1, "rope_parameters": rope(1e3),
    }),
    "ernie4_5_moe": ("Ernie4_5_Moe", SMALL | {
        "rms_norm_eps": 1e-2, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 16,
        "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "tie_word_embeddings": False,
        "rope_parameters": rope(1e3),
    }),
    "hunyuan_v1_moe": ("HunYuanMoEV1", SMALL | {
        "head_dim": 8, "intermediate_size": 16, "rms_norm_eps": 1e-2, "num_experts": 6, "moe_topk": [2, 2],
        "rope_parameters": rope(1e3),
    }),
    "minimax_m2": ("MiniMaxM2", SMALL | {
        "head_dim": 12, "intermediate_size": 20, "rms_norm_eps": 1e-2, "num_local_experts": 6, "num_experts_per_tok": 2,
        "rope_parameters": rope(1e3, partial_rotary_factor=0.5),
    }),
    "kimi_k2": ("DeepseekV3", LATENT | {
        "rms_norm_eps": 1e-2, "q_lora_rank": 10, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        "routed_scaling_factor": 2.827, "n_shared_experts": 1, "num_nextn_predict_layers": 0,
        "rope_parameters": rope(5e4, rope_type="yarn", factor=32.0, original_max_position_embeddings=16, beta_fast=1.0,
            beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0),
    }),
    "mistral4": ("Mistral4", LATENT | {
        "q_lora_rank": 10, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5,
        "n_shared_experts": 1, "rms_norm_eps": 1e-2,
        "rope_parameters": rope(1e3, rope_type="yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=8.0,
            beta_slow=1.0, mscale=0.7, mscale_all_dim=1.3, llama_4_scaling_beta=0.3),
    }),
    "solar_open": ("SolarOpen", {key: value for key, value in SMALL.items() if key != "intermediate_size"} | {
        "hidden_size": 16, "head_dim": 12, "rms_norm_eps": 1e-2, "attention_bias": True, "n_routed_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 20, "routed_scaling_factor": 1.5,
        "rope_parameters": rope(1e3),
    }),
    "phimoe": (
        "Phimoe",
        SMALL | NO_TOKENS | {
            "hidden_size": 16, "intermediate_size": 20, "num_local_experts": 6, "router_jitter_noise": 0.3,
            "attention_bias": True, "lm_head_bias": True, "sliding_window": 9, "rms_norm_eps": 1e-2,
            "rope_parameters": rope(
                1e2, rope_type="longrope", short_factor=[1.25, 2.0], long_factor=[3.0, 5.0], short_mscale=1.25,
                long_mscale=1.25, original_max_position_embeddings=256,  # longer rows have other factors there
            ),
            "max_position_embeddings": 512,
        },
    ),
    "olmoe": ("Olmoe", SMALL | {
        "hidden_size": 16, "num_experts": 6, "num_experts_per_tok": 3, "rope_parameters": rope(1e4),
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    }),
    "gpt_oss": ("GptOss", SMALL | {
        "head_dim": 8, "intermediate_size": 20, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 7,
        "rope_parameters": YARN,
    }),
    "deepseek_v2": ("DeepseekV2", LATENT | {
        "q_lora_rank": None, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 2.5, "n_shared_experts": 2, "rope_parameters": rope(1e4),
    }),
    "deepseek_v3": ("DeepseekV3", LATENT | {
        "q_lora_rank": 10, "num_hidden_layers": 3, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 2.5, "n_shared_experts": 1,
        "rope_parameters": rope(1e4, rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=8.0,
            beta_slow=1.0, mscale=0.7, mscale_all_dim=1.3),
    }),
    "granitemoe": ("GraniteMoe", SMALL | GRANITE | {
        "intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": rope(1e3),
    }),
    "llama4": ("Llama4", SMALL | {
        "hidden_size": 16, "intermediate_size": 12, "intermediate_size_mlp": 20, "num_hidden_layers": 3, "head_dim": 8,
        "num_local_experts": 4, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 1, 0], "attention_chunk_size": 7,
        "floor_scale": 5, "attn_scale": 0.4, "rms_norm_eps": 1e-2, "rope_parameters": rope(1e3),
    }),
    "gemma4_moe": ("Gemma4", SMALL | {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "head_dim": 8, "global_head_dim": 12,
        "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 6, "enable_moe_block": True,
        "hidden_size_per_layer_input": 0, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12,
        "rms_norm_eps": 1e-2, "layer_types": [LOCAL, LOCAL, GLOBAL],
        "rope_parameters": {LOCAL: rope(100.0), GLOBAL: rope(1e3, rope_type="proportional", partial_rotary_factor=0.5)},
    }),
}  # fmt: skip
