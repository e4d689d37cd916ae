"""Cases of the goldens that `generate.py` makes: for each, a class of transformers and its small configuration."""

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
"""The common part of most cases; heads are 8 wide where no case says otherwise."""
GEMMA = SMALL | {
    "hidden_size": 24, "head_dim": 8, "intermediate_size": 32, "rms_norm_eps": 1e-6,
}  # fmt: skip
"""The common part of Gemma 2 and 3."""
NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
LATENT = SMALL | {
    "hidden_size": 16, "num_key_value_heads": 4, "kv_lora_rank": 12, "qk_rope_head_dim": 8, "qk_nope_head_dim": 6,
    "v_head_dim": 10, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
"""The common part of DeepSeek-V2 and V3."""
GRANITE = {
    "embedding_multiplier": 3.0, "attention_multiplier": 0.6, "residual_multiplier": 0.45, "logits_scaling": 6.0,
    "rms_norm_eps": 1e-2, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
"""Settings of every Granite, dense and with experts."""
BERT = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
"""The common part of BERT and ModernBERT."""
LOCAL, GLOBAL, LINEAR = "sliding_attention", "full_attention", "linear_attention"


def rope(base: float, **scaling: object) -> dict:
    """The rotary embeddings of a configuration, with the keys of a scaling, if any."""
    return {"rope_type": "default", "rope_theta": base} | scaling


HYBRID = SMALL | {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "head_dim": 16, "linear_num_value_heads": 8,
    "linear_num_key_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 5, "rms_norm_eps": 1e-2,
    "layer_types": [LINEAR, LINEAR, GLOBAL], "rope_parameters": rope(1e3, partial_rotary_factor=0.25),
}  # fmt: skip
"""The common part of Qwen3-Next and Qwen3.5."""
YARN = rope(
    1e3, rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=4.0, beta_slow=1.0, truncate=False
)

CASES: dict[str, tuple[str, dict]] = {
    "gpt2": (
        "GPT2",
        {
            "vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 128, "n_positions": 64,
            "bos_token_id": 0, "eos_token_id": 0,
        },
    ),
    "llama": (
        "Llama",
        SMALL | {
            "head_dim": 16, "rms_norm_eps": 1e-5,
            "rope_parameters": rope(
                1e4, rope_type="llama3", factor=4.0, original_max_position_embeddings=32, low_freq_factor=1.0,
                high_freq_factor=4.0,
            ),
        },
    ),
    "llama_biases": (
        "Llama",
        SMALL | {
            "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "attention_bias": True, "mlp_bias": True,
            "rope_parameters": rope(500.0, rope_type="linear", factor=2.5),
        },
    ),
    "smollm2": ("Llama", SMALL | {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_parameters": rope(1e5)}),
    "smollm3": (
        "SmolLM3",
        SMALL | {
            "num_hidden_layers": 5, "hidden_size": 16, "tie_word_embeddings": True, "no_rope_layer_interval": 4,
            "rope_parameters": rope(2e6), "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0,
        },
    ),
    "mistral": ("Mistral", SMALL | {"rms_norm_eps": 1e-5, "sliding_window": 7, "rope_parameters": rope(1e4)}),
    "mixtral": (
        "Mixtral",
        SMALL | {
            "hidden_size": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "rope_parameters": rope(1e4),
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        SMALL | {
            "num_hidden_layers": 3, "hidden_size": 16, "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 2,
            "norm_topk_prob": True, "moe_intermediate_size": 20, "mlp_only_layers": [0], "rope_parameters": rope(1e3),
        },
    ),
    "qwen2_moe": (
        "Qwen2Moe",
        SMALL | {
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 32, "rope_parameters": rope(1e3), "use_sliding_window": True,
            "sliding_window": 7, "max_window_layers": 1, "num_hidden_layers": 2,
        },
    ),
    "glm4": (
        "Glm4",
        SMALL | {
            "head_dim": 12, "rms_norm_eps": 1e-2, "pad_token_id": 0, "eos_token_id": 0,
            "rope_parameters": rope(1e3, partial_rotary_factor=0.67),
        },
    ),
    "glm4_moe": (
        "Glm4Moe",
        SMALL | {
            "head_dim": 12, "rms_norm_eps": 1e-2, "attention_bias": True, "use_qk_norm": True, "n_routed_experts": 6,
            "num_experts_per_tok": 2, "moe_intermediate_size": 20, "n_shared_experts": 1, "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.5, "rope_parameters": rope(1e3, partial_rotary_factor=0.67),
        },
    ),
    "dots1": (
        "Dots1",
        SMALL | {
            "head_dim": 12, "rms_norm_eps": 1e-2, "n_routed_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 20, "n_shared_experts": 2, "first_k_dense_replace": 1, "norm_topk_prob": True,
            "routed_scaling_factor": 2.5, "sliding_window": 7, "max_window_layers": 1, "rope_parameters": rope(1e3),
        },
    ),
    "ernie4_5": (
        "Ernie4_5",
        SMALL | {
            "head_dim": 12, "rms_norm_eps": 1e-2, "use_bias": True, "tie_word_embeddings": True,
            "rope_parameters": rope(1e3),
        },
    ),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        SMALL | {
            "rms_norm_eps": 1e-2, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 16,
            "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "tie_word_embeddings": False,
            "rope_parameters": rope(1e3),
        },
    ),
    "hunyuan_v1_dense": (
        "HunYuanDenseV1",
        SMALL | {
            "head_dim": 8, "rms_norm_eps": 1e-2, "attention_bias": True, "tie_word_embeddings": True,
            "rope_parameters": rope(1e3, rope_type="dynamic", alpha=50.0, factor=1.0),
        },
    ),
    "hunyuan_v1_moe": (
        "HunYuanMoEV1",
        SMALL | {
            "head_dim": 8, "intermediate_size": 16, "rms_norm_eps": 1e-2, "num_experts": 6, "moe_topk": [2, 2],
            "rope_parameters": rope(1e3),
        },
    ),
    "minimax_m2": (
        "MiniMaxM2",
        SMALL | {
            "head_dim": 12, "intermediate_size": 20, "rms_norm_eps": 1e-2, "num_local_experts": 6,
            "num_experts_per_tok": 2, "rope_parameters": rope(1e3, partial_rotary_factor=0.5),
        },
    ),
    "kimi_k2": (
        "DeepseekV3",
        LATENT | {
            "rms_norm_eps": 1e-2, "q_lora_rank": 10, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
            "routed_scaling_factor": 2.827, "n_shared_experts": 1, "num_nextn_predict_layers": 0,
            "rope_parameters": rope(
                5e4, rope_type="yarn", factor=32.0, original_max_position_embeddings=16, beta_fast=1.0, beta_slow=1.0,
                mscale=1.0, mscale_all_dim=1.0,
            ),
        },
    ),
    "mistral4": (
        "Mistral4",
        LATENT | {
            "q_lora_rank": 10, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5,
            "n_shared_experts": 1, "rms_norm_eps": 1e-2, "rope_parameters": rope(
                1e3, rope_type="yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=8.0, beta_slow=1.0,
                mscale=0.7, mscale_all_dim=1.3, llama_4_scaling_beta=0.3,
            ),
        },
    ),
    "solar_open": (
        "SolarOpen",
        {key: value for key, value in SMALL.items() if key != "intermediate_size"} | {
            "hidden_size": 16, "head_dim": 12, "rms_norm_eps": 1e-2, "attention_bias": True, "n_routed_experts": 6,
            "num_experts_per_tok": 2, "moe_intermediate_size": 20, "routed_scaling_factor": 1.5,
            "rope_parameters": rope(1e3),
        },
    ),
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
    "olmoe": (
        "Olmoe",
        SMALL | {
            "hidden_size": 16, "num_experts": 6, "num_experts_per_tok": 3, "rope_parameters": rope(1e4),
            "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
        },
    ),
    "gpt_oss": (
        "GptOss",
        SMALL | {
            "head_dim": 8, "intermediate_size": 20, "num_local_experts": 6, "num_experts_per_tok": 2,
            "sliding_window": 7, "rope_parameters": YARN,
        },
    ),
    "deepseek_v2": (
        "DeepseekV2",
        LATENT | {
            "q_lora_rank": None, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
            "routed_scaling_factor": 2.5, "n_shared_experts": 2, "rope_parameters": rope(1e4),
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        LATENT | {
            "q_lora_rank": 10, "num_hidden_layers": 3, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
            "routed_scaling_factor": 2.5, "n_shared_experts": 1, "rope_parameters": rope(
                1e4, rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=8.0, beta_slow=1.0,
                mscale=0.7, mscale_all_dim=1.3,
            ),
        },
    ),
    "mamba2": (
        "Mamba2",
        {
            "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "n_groups": 4,
            "state_size": 6, "chunk_size": 16, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
        },
    ),
    "nemotron_h": (
        "NemotronH",
        {
            "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 6, "mamba_num_heads": 8, "mamba_head_dim": 4, "n_groups": 4,
            "ssm_state_size": 6, "chunk_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 12, "moe_shared_expert_intermediate_size": 24, "routed_scaling_factor": 2.5,
            "time_step_min": 0.3, "layers_block_type": [LINEAR, "moe", GLOBAL, "mlp"],
        },
    ),
    "kimi_linear": (
        "KimiLinear",
        {
            "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 12, "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 6, "v_head_dim": 5, "num_local_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 12, "n_shared_experts": 2, "routed_scaling_factor": 2.5, "linear_num_heads": 4,
            "linear_head_dim": 6, "rms_norm_eps": 1e-2, "layer_types": [LINEAR, GLOBAL], "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 128,
        },
    ),
    "granite": ("Granite", SMALL | GRANITE | {"rope_parameters": rope(1e3), "tie_word_embeddings": True}),
    "granitemoe": (
        "GraniteMoe",
        SMALL | GRANITE | {
            "intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": rope(1e3),
        },
    ),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        SMALL | GRANITE | {
            "hidden_size": 16, "intermediate_size": 12, "shared_intermediate_size": 24, "num_local_experts": 4,
            "num_experts_per_tok": 2, "mamba_n_heads": 8, "mamba_d_head": 4, "mamba_n_groups": 2, "mamba_d_state": 6,
            "mamba_chunk_size": 16, "layer_types": [LINEAR, GLOBAL], "position_embedding_type": "rope",
            "rope_parameters": rope(1e3),
        },
    ),
    "minimax": (
        "MiniMax",
        SMALL | {
            "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 3, "head_dim": 6, "num_local_experts": 4,
            "num_experts_per_tok": 2, "block_size": 16, "rms_norm_eps": 1e-2, "rope_parameters": rope(1e3),
            "layer_types": [LINEAR, LINEAR, GLOBAL], "full_attn_alpha_factor": 1.5, "full_attn_beta_factor": 0.75,
            "linear_attn_alpha_factor": 2.5, "linear_attn_beta_factor": 1.25, "mlp_alpha_factor": 3.5,
            "mlp_beta_factor": 1,
        },
    ),
    "lfm2": (
        "Lfm2",
        SMALL | {
            "hidden_size": 16, "num_hidden_layers": 3, "block_multiple_of": 20, "block_ffn_dim_multiplier": 1.5,
            "norm_eps": 1e-2, "layer_types": ["conv", GLOBAL, "conv"], "rope_parameters": rope(1e3),
        },
    ),
    "lfm2_moe": (
        "Lfm2Moe",
        SMALL | {
            "hidden_size": 16, "num_hidden_layers": 3, "moe_intermediate_size": 12, "num_experts": 4,
            "num_experts_per_tok": 2, "num_dense_layers": 1, "routed_scaling_factor": 2.5, "conv_L_cache": 4,
            "norm_eps": 1e-2, "layer_types": ["conv", GLOBAL, "conv"], "rope_parameters": rope(1e3),
        },
    ),
    "llama4": (
        "Llama4",
        SMALL | {
            "hidden_size": 16, "intermediate_size": 12, "intermediate_size_mlp": 20, "num_hidden_layers": 3,
            "head_dim": 8, "num_local_experts": 4, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 1, 0],
            "attention_chunk_size": 7, "floor_scale": 5, "attn_scale": 0.4, "rms_norm_eps": 1e-2,
            "rope_parameters": rope(1e3),
        },
    ),
    "qwen3_next": (
        "Qwen3Next",
        HYBRID | {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
            "shared_expert_intermediate_size": 24, "mlp_only_layers": [0],
        },
    ),
    "qwen3_5": ("Qwen3_5", HYBRID | {"tie_word_embeddings": True, "layer_types": [GLOBAL, LINEAR, LINEAR]}),
    "qwen3_5_moe": (
        "Qwen3_5Moe",
        HYBRID | {
            "num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
            "shared_expert_intermediate_size": 12, "layer_types": [LINEAR, GLOBAL],
        },
    ),
    "qwen2": ("Qwen2", SMALL | {"tie_word_embeddings": True, "rope_parameters": rope(1e3)}),
    "qwen3": ("Qwen3", SMALL | {"head_dim": 12, "tie_word_embeddings": True, "rope_parameters": rope(1e3)}),
    "olmo2": (
        "Olmo2",
        SMALL | {
            "rms_norm_eps": 1e-6, "rope_parameters": rope(5e3), "pad_token_id": None, "bos_token_id": None,
            "eos_token_id": None,
        },
    ),
    "gemma": ("Gemma", GEMMA | {"hidden_act": "gelu_pytorch_tanh", "rope_parameters": rope(1e3)}),
    "olmo3": (
        "Olmo3",
        SMALL | NO_TOKENS | {
            "num_hidden_layers": 3, "hidden_size": 16, "rms_norm_eps": 1e-2, "sliding_window": 7,
            "layer_types": [LOCAL, GLOBAL, LOCAL], "rope_parameters": {LOCAL: rope(5e3), GLOBAL: YARN},
        },
    ),
    "seed_oss": (
        "SeedOss", SMALL | NO_TOKENS | {"head_dim": 12, "rms_norm_eps": 1e-2, "rope_parameters": rope(1e3)}
    ),
    "arcee": ("Arcee", SMALL | NO_TOKENS | {"rms_norm_eps": 1e-2, "mlp_bias": True, "rope_parameters": YARN}),
    "exaone4": (
        "Exaone4",
        SMALL | {
            "num_hidden_layers": 4, "hidden_size": 16, "rms_norm_eps": 1e-2, "sliding_window": 7,
            "sliding_window_pattern": 4, "tie_word_embeddings": True, "rope_parameters": rope(1e3),
        },
    ),
    "ministral": (
        "Ministral",
        SMALL | {
            "num_hidden_layers": 3, "hidden_size": 16, "head_dim": 8, "rms_norm_eps": 1e-2, "sliding_window": 7,
            "layer_types": [LOCAL, LOCAL, GLOBAL], "rope_parameters": rope(1e3),
        },
    ),
    "ministral3": (
        "Ministral3",
        SMALL | {
            "head_dim": 8, "rms_norm_eps": 1e-2, "pad_token_id": 0, "rope_parameters": YARN | {
                "original_max_position_embeddings": 8, "beta_fast": 2.0, "mscale": 0.7, "mscale_all_dim": 1.3,
                "llama_4_scaling_beta": 0.5,
            },
        },
    ),
    "starcoder2": (
        "Starcoder2",
        SMALL | NO_TOKENS | {"sliding_window": 7, "norm_epsilon": 1e-2, "rope_parameters": rope(1e3)},
    ),
    "stablelm": (
        "StableLm",
        SMALL | NO_TOKENS | {
            "use_qkv_bias": True, "use_parallel_residual": True, "layer_norm_eps": 1e-2,
            "rope_parameters": rope(1e2, partial_rotary_factor=0.5),
        },
    ),
    "olmo": ("Olmo", SMALL | NO_TOKENS | {"clip_qkv": 0.75, "rope_parameters": rope(1e3)}),
    "cohere": (
        "Cohere",
        SMALL | {
            "logit_scale": 0.3, "layer_norm_eps": 1e-2, "use_qk_norm": True, "attention_bias": True,
            "tie_word_embeddings": True, "eos_token_id": 1, "rope_parameters": rope(1e3),
        },
    ),
    "cohere2": (
        "Cohere2",
        SMALL | {
            "num_hidden_layers": 3, "hidden_size": 16, "logit_scale": 0.3, "layer_norm_eps": 1e-2, "sliding_window": 7,
            "layer_types": [LOCAL, LOCAL, GLOBAL], "eos_token_id": 1, "rope_parameters": rope(1e3),
        },
    ),
    "gpt_neox": (
        "GPTNeoX",
        {key: value for key, value in SMALL.items() if key != "num_key_value_heads"} | NO_TOKENS | {
            "layer_norm_eps": 1e-2, "rope_parameters": rope(1e2, partial_rotary_factor=0.5),
        },
    ),
    "phi": (
        "Phi",
        SMALL | NO_TOKENS | {"layer_norm_eps": 1e-2, "rope_parameters": rope(1e2, partial_rotary_factor=0.5)},
    ),
    "apertus": (
        "Apertus", SMALL | NO_TOKENS | {"rms_norm_eps": 1e-2, "dtype": "float32", "rope_parameters": rope(1e3)}
    ),
    "phi3": (
        "Phi3",
        SMALL | {
            "sliding_window": 9, "rope_parameters": rope(1e4), "pad_token_id": None, "bos_token_id": 0,
            "eos_token_id": 0,
        },
    ),
    "phi4_mini": (
        "Phi3",
        SMALL | {
            "rope_parameters": rope(1e3, partial_rotary_factor=0.75), "tie_word_embeddings": True, "pad_token_id": None,
            "bos_token_id": 0, "eos_token_id": 0,
        },
    ),
    "phi3_longrope": (
        "Phi3",
        SMALL | {
            "rope_parameters": rope(
                1e2, rope_type="longrope", partial_rotary_factor=0.75, short_factor=[1.25, 1.5, 2.0],
                long_factor=[1.0, 3.0, 5.0],
            ),
            "original_max_position_embeddings": 16, "rms_norm_eps": 1e-2, "pad_token_id": None, "bos_token_id": 0,
            "eos_token_id": 0,
        },
    ),
    "gemma2": (
        "Gemma2",
        GEMMA | {
            "num_hidden_layers": 4, "query_pre_attn_scalar": 5, "sliding_window": 7, "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0, "layer_types": [LOCAL, GLOBAL] * 2, "rope_parameters": rope(1e4),
        },
    ),
    "gemma3n": (
        "Gemma3n",
        SMALL | {
            "hidden_size": 16, "num_hidden_layers": 6, "head_dim": 8, "intermediate_size": [24, 24, 20, 24, 24, 24],
            "sliding_window": 6, "layer_types": [LOCAL, GLOBAL, LOCAL, GLOBAL, LOCAL, GLOBAL],
            "num_kv_shared_layers": 2, "rms_norm_eps": 1e-2, "final_logit_softcapping": 5.0,
            "rope_parameters": {LOCAL: rope(100.0), GLOBAL: rope(1e4)}, "altup_num_inputs": 3, "altup_active_idx": 1,
            "laurel_rank": 8, "activation_sparsity_pattern": [0.8, 0.8, 0.6, 0.0, 0.0, 0.0],
            "vocab_size_per_layer_input": 53, "hidden_size_per_layer_input": 4,
        },
    ),
    "gemma3": (
        "Gemma3",
        GEMMA | {
            "num_hidden_layers": 6, "query_pre_attn_scalar": 12, "sliding_window": 6,
            "layer_types": [LOCAL, LOCAL, LOCAL, GLOBAL, LOCAL, LOCAL],
            "rope_parameters": {LOCAL: rope(100.0), GLOBAL: rope(1e4, rope_type="linear", factor=4.0)},
        },
    ),
    "gemma4": (
        "Gemma4",
        SMALL | {
            "hidden_size": 20, "intermediate_size": 24, "num_hidden_layers": 5, "head_dim": 8, "global_head_dim": 12,
            "num_global_key_value_heads": 1, "attention_k_eq_v": True, "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True, "sliding_window": 6, "hidden_size_per_layer_input": 4,
            "vocab_size_per_layer_input": 61, "final_logit_softcapping": 20.0, "rms_norm_eps": 0.1,
            "layer_types": [LOCAL, GLOBAL, LOCAL, LOCAL, GLOBAL], "rope_parameters": {
                LOCAL: rope(100.0), GLOBAL: rope(1e3, rope_type="proportional", partial_rotary_factor=0.25),
            },
        },
    ),
    "gemma4_moe": (
        "Gemma4",
        SMALL | {
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "head_dim": 8, "global_head_dim": 12,
            "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 6, "enable_moe_block": True,
            "hidden_size_per_layer_input": 0, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12,
            "rms_norm_eps": 1e-2, "layer_types": [LOCAL, LOCAL, GLOBAL], "rope_parameters": {
                LOCAL: rope(100.0), GLOBAL: rope(1e3, rope_type="proportional", partial_rotary_factor=0.5),
            },
        },
    ),
    "gemma4_dense": (
        "Gemma4",
        SMALL | {
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "head_dim": 8, "global_head_dim": 12,
            "tie_word_embeddings": False, "sliding_window": 6, "hidden_size_per_layer_input": 0, "rms_norm_eps": 1e-2,
            "attention_bias": True, "layer_types": [LOCAL, GLOBAL, GLOBAL], "rope_parameters": {
                LOCAL: rope(100.0), GLOBAL: rope(1e3, rope_type="proportional", partial_rotary_factor=0.5),
            },
        },
    ),
    "modernbert": (
        "ModernBert",
        BERT | {
            "num_hidden_layers": 4, "layer_types": [GLOBAL, LOCAL, LOCAL, GLOBAL], "local_attention": 12,
            "norm_eps": 1e-2, "rope_parameters": {LOCAL: rope(100.0), GLOBAL: rope(1e4)}, "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
    "bert": ("Bert", BERT | {"num_hidden_layers": 3, "layer_norm_eps": 1e-2}),
}  # fmt: skip
"""The class of transformers and the options of its configuration, by the name of the golden."""
