"""Options that cases of several goldens share."""

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
