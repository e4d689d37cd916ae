"""Cases of decoders with linear attention, state-space or convolution layers."""

from tests.goldens.shared_options import GLOBAL, GRANITE, HYBRID, LINEAR, SMALL, rope

HYBRIDS: dict[str, tuple[str, dict]] = {
    "mamba2": ("Mamba2", {
        "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "n_groups": 4,
        "state_size": 6, "chunk_size": 16, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
    }),
    "nemotron_h": ("NemotronH", {
        "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 6, "mamba_num_heads": 8, "mamba_head_dim": 4, "n_groups": 4,
        "ssm_state_size": 6, "chunk_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 12, "moe_shared_expert_intermediate_size": 24, "routed_scaling_factor": 2.5,
        "time_step_min": 0.3, "layers_block_type": [LINEAR, "moe", GLOBAL, "mlp"],
    }),
    "kimi_linear": ("KimiLinear", {
        "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5,
        "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_shared_experts": 2,
        "routed_scaling_factor": 2.5, "linear_num_heads": 4, "linear_head_dim": 6, "rms_norm_eps": 1e-2,
        "layer_types": [LINEAR, GLOBAL], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "max_position_embeddings": 128,
    }),
    "granitemoehybrid": ("GraniteMoeHybrid", SMALL | GRANITE | {
        "hidden_size": 16, "intermediate_size": 12, "shared_intermediate_size": 24, "num_local_experts": 4,
        "num_experts_per_tok": 2, "mamba_n_heads": 8, "mamba_d_head": 4, "mamba_n_groups": 2, "mamba_d_state": 6,
        "mamba_chunk_size": 16, "layer_types": [LINEAR, GLOBAL], "position_embedding_type": "rope",
        "rope_parameters": rope(1e3),
    }),
    "minimax": ("MiniMax", SMALL | {
        "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 3, "head_dim": 6, "num_local_experts": 4,
        "num_experts_per_tok": 2, "block_size": 16, "rms_norm_eps": 1e-2, "rope_parameters": rope(1e3),
        "layer_types": [LINEAR, LINEAR, GLOBAL], "full_attn_alpha_factor": 1.5, "full_attn_beta_factor": 0.75,
        "linear_attn_alpha_factor": 2.5, "linear_attn_beta_factor": 1.25, "mlp_alpha_factor": 3.5, "mlp_beta_factor": 1,
    }),
    "lfm2": ("Lfm2", SMALL | {
        "hidden_size": 16, "num_hidden_layers": 3, "block_multiple_of": 20, "block_ffn_dim_multiplier": 1.5,
        "norm_eps": 1e-2, "layer_types": ["conv", GLOBAL, "conv"], "rope_parameters": rope(1e3),
    }),
    "lfm2_moe": ("Lfm2Moe", SMALL | {
        "hidden_size": 16, "num_hidden_layers": 3, "moe_intermediate_size": 12, "num_experts": 4,
        "num_experts_per_tok": 2, "num_dense_layers": 1, "routed_scaling_factor": 2.5, "conv_L_cache": 4,
        "norm_eps": 1e-2, "layer_types": ["conv", GLOBAL, "conv"], "rope_parameters": rope(1e3),
    }),
    "qwen3_next": ("Qwen3Next", HYBRID | {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 24,
        "mlp_only_layers": [0],
    }),
    "qwen3_5": ("Qwen3_5", HYBRID | {"tie_word_embeddings": True, "layer_types": [GLOBAL, LINEAR, LINEAR]}),
    "qwen3_5_moe": ("Qwen3_5Moe", HYBRID | {
        "num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 12, "layer_types": [LINEAR, GLOBAL],
    }),
}  # fmt: skip
