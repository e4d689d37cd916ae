"""Cases of dense decoders and encoders."""

from tests.goldens.shared_options import BERT, GEMMA, GLOBAL, GRANITE, LOCAL, NO_TOKENS, SMALL, YARN, rope

DENSE: dict[str, tuple[str, dict]] = {
    "gpt2": ("GPT2", {
        "vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 128, "n_positions": 64, "bos_token_id": 0,
        "eos_token_id": 0,
    }),
    "llama": ("Llama", SMALL | {
        "head_dim": 16, "rms_norm_eps": 1e-5,
        "rope_parameters": rope(1e4, rope_type="llama3", factor=4.0, original_max_position_embeddings=32,
            low_freq_factor=1.0, high_freq_factor=4.0),
    }),
    "llama_biases": ("Llama", SMALL | {
        "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "attention_bias": True, "mlp_bias": True,
        "rope_parameters": rope(500.0, rope_type="linear", factor=2.5),
    }),
    "smollm2": ("Llama", SMALL | {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_parameters": rope(1e5)}),
    "smollm3": ("SmolLM3", SMALL | {
        "num_hidden_layers": 5, "hidden_size": 16, "tie_word_embeddings": True, "no_rope_layer_interval": 4,
        "rope_parameters": rope(2e6), "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0,
    }),
    "mistral": ("Mistral", SMALL | {"rms_norm_eps": 1e-5, "sliding_window": 7, "rope_parameters": rope(1e4)}),
    "glm4": ("Glm4", SMALL | {
        "head_dim": 12, "rms_norm_eps": 1e-2, "pad_token_id": 0, "eos_token_id": 0,
        "rope_parameters": rope(1e3, partial_rotary_factor=0.67),
    }),
    "ernie4_5": ("Ernie4_5", SMALL | {
        "head_dim": 12, "rms_norm_eps": 1e-2, "use_bias": True, "tie_word_embeddings": True,
        "rope_parameters": rope(1e3),
    }),
    "hunyuan_v1_dense": ("HunYuanDenseV1", SMALL | {
        "head_dim": 8, "rms_norm_eps": 1e-2, "attention_bias": True, "tie_word_embeddings": True,
        "rope_parameters": rope(1e3, rope_type="dynamic", alpha=50.0, factor=1.0),
    }),
    "granite": ("Granite", SMALL | GRANITE | {"rope_parameters": rope(1e3), "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", SMALL | {"tie_word_embeddings": True, "rope_parameters": rope(1e3)}),
    "qwen3": ("Qwen3", SMALL | {"head_dim": 12, "tie_word_embeddings": True, "rope_parameters": rope(1e3)}),
    "olmo2": ("Olmo2", SMALL | {
        "rms_norm_eps": 1e-6, "rope_parameters": rope(5e3), "pad_token_id": None, "bos_token_id": None,
        "eos_token_id": None,
    }),
    "gemma": ("Gemma", GEMMA | {"hidden_act": "gelu_pytorch_tanh", "rope_parameters": rope(1e3)}),
    "olmo3": ("Olmo3", SMALL | NO_TOKENS | {
        "num_hidden_layers": 3, "hidden_size": 16, "rms_norm_eps": 1e-2, "sliding_window": 7,
        "layer_types": [LOCAL, GLOBAL, LOCAL], "rope_parameters": {LOCAL: rope(5e3), GLOBAL: YARN},
    }),
    "seed_oss": ("SeedOss", SMALL | NO_TOKENS | {"head_dim": 12, "rms_norm_eps": 1e-2, "rope_parameters": rope(1e3)}),
    "arcee": ("Arcee", SMALL | NO_TOKENS | {"rms_norm_eps": 1e-2, "mlp_bias": True, "rope_parameters": YARN}),
    "exaone4": ("Exaone4", SMALL | {
        "num_hidden_layers": 4, "hidden_size": 16, "rms_norm_eps": 1e-2, "sliding_window": 7,
        "sliding_window_pattern": 4, "tie_word_embeddings": True, "rope_parameters": rope(1e3),
    }),
    "ministral": ("Ministral", SMALL | {
        "num_hidden_layers": 3, "hidden_size": 16, "head_dim": 8, "rms_norm_eps": 1e-2, "sliding_window": 7,
        "layer_types": [LOCAL, LOCAL, GLOBAL], "rope_parameters": rope(1e3),
    }),
    "ministral3": ("Ministral3", SMALL | {
        "head_dim": 8, "rms_norm_eps": 1e-2, "pad_token_id": 0,
        "rope_parameters": YARN | {"original_max_position_embeddings": 8, "beta_fast": 2.0, "mscale": 0.7,
            "mscale_all_dim": 1.3, "llama_4_scaling_beta": 0.5},
    }),
    "starcoder2": ("Starcoder2", SMALL | NO_TOKENS | {
        "sliding_window": 7, "norm_epsilon": 1e-2, "rope_parameters": rope(1e3),
    }),
    "stablelm": ("StableLm", SMALL | NO_TOKENS | {
        "use_qkv_bias": True, "use_parallel_residual": True, "layer_norm_eps": 1e-2,
        "rope_parameters": rope(1e2, partial_rotary_factor=0.5),
    }),
    "olmo": ("Olmo", SMALL | NO_TOKENS | {"clip_qkv": 0.75, "rope_parameters": rope(1e3)}),
    "cohere": ("Cohere", SMALL | {
        "logit_scale": 0.3, "layer_norm_eps": 1e-2, "use_qk_norm": True, "attention_bias": True,
        "tie_word_embeddings": True, "eos_token_id": 1, "rope_parameters": rope(1e3),
    }),
    "cohere2": ("Cohere2", SMALL | {
        "num_hidden_layers": 3, "hidden_size": 16, "logit_scale": 0.3, "layer_norm_eps": 1e-2, "sliding_window": 7,
        "layer_types": [LOCAL, LOCAL, GLOBAL], "eos_token_id": 1, "rope_parameters": rope(1e3),
    }),
    "gpt_neox": ("GPTNeoX", {key: value for key, value in SMALL.items() if key != "num_key_value_heads"} | NO_TOKENS | {
        "layer_norm_eps": 1e-2, "rope_parameters": rope(1e2, partial_rotary_factor=0.5),
    }),
    "phi": ("Phi", SMALL | NO_TOKENS | {
        "layer_norm_eps": 1e-2, "rope_parameters": rope(1e2, partial_rotary_factor=0.5),
    }),
    "apertus": (
        "Apertus", SMALL | NO_TOKENS | {"rms_norm_eps": 1e-2, "dtype": "float32", "rope_parameters": rope(1e3)}
    ),
    "phi3": ("Phi3", SMALL | {
        "sliding_window": 9, "rope_parameters": rope(1e4), "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0,
    }),
    "phi4_mini": ("Phi3", SMALL | {
        "rope_parameters": rope(1e3, partial_rotary_factor=0.75), "tie_word_embeddings": True, "pad_token_id": None,
        "bos_token_id": 0, "eos_token_id": 0,
    }),
    "phi3_longrope": ("Phi3", SMALL | {
        "rope_parameters": rope(1e2, rope_type="longrope", partial_rotary_factor=0.75, short_factor=[1.25, 1.5, 2.0],
            long_factor=[1.0, 3.0, 5.0]),
        "original_max_position_embeddings": 16, "rms_norm_eps": 1e-2, "pad_token_id": None, "bos_token_id": 0,
        "eos_token_id": 0,
    }),
    "gemma2": ("Gemma2", GEMMA | {
        "num_hidden_layers": 4, "query_pre_attn_scalar": 5, "sliding_window": 7, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0, "layer_types": [LOCAL, GLOBAL] * 2, "rope_parameters": rope(1e4),
    }),
    "gemma3n": ("Gemma3n", SMALL | {
        "hidden_size": 16, "num_hidden_layers": 6, "head_dim": 8, "intermediate_size": [24, 24, 20, 24, 24, 24],
        "sliding_window": 6, "layer_types": [LOCAL, GLOBAL, LOCAL, GLOBAL, LOCAL, GLOBAL], "num_kv_shared_layers": 2,
        "rms_norm_eps": 1e-2, "final_logit_softcapping": 5.0,
        "rope_parameters": {LOCAL: rope(100.0), GLOBAL: rope(1e4)}, "altup_num_inputs": 3, "altup_active_idx": 1,
        "laurel_rank": 8, "activation_sparsity_pattern": [0.8, 0.8, 0.6, 0.0, 0.0, 0.0],
        "vocab_size_per_layer_input": 53, "hidden_size_per_layer_input": 4,
    }),
    "gemma3": ("Gemma3", GEMMA | {
        "num_hidden_layers": 6, "query_pre_attn_scalar": 12, "sliding_window": 6,
        "layer_types": [LOCAL, LOCAL, LOCAL, GLOBAL, LOCAL, LOCAL],
        "rope_parameters": {LOCAL: rope(100.0), GLOBAL: rope(1e4, rope_type="linear", factor=4.0)},
    }),
    "gemma4": ("Gemma4", SMALL | {
        "hidden_size": 20, "intermediate_size": 24, "num_hidden_layers": 5, "head_dim": 8, "global_head_dim": 12,
        "num_global_key_value_heads": 1, "attention_k_eq_v": True, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "sliding_window": 6, "hidden_size_per_layer_input": 4,
        "vocab_size_per_layer_input": 61, "final_logit_softcapping": 20.0, "rms_norm_eps": 0.1,
        "layer_types": [LOCAL, GLOBAL, LOCAL, LOCAL, GLOBAL],
        "rope_parameters": {LOCAL: rope(100.0),
            GLOBAL: rope(1e3, rope_type="proportional", partial_rotary_factor=0.25)},
    }),
    "gemma4_dense": ("Gemma4", SMALL | {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "head_dim": 8, "global_head_dim": 12,
        "tie_word_embeddings": False, "sliding_window": 6, "hidden_size_per_layer_input": 0, "rms_norm_eps": 1e-2,
        "attention_bias": True, "layer_types": [LOCAL, GLOBAL, GLOBAL],
        "rope_parameters": {LOCAL: rope(100.0), GLOBAL: rope(1e3, rope_type="proportional", partial_rotary_factor=0.5)},
    }),
    "modernbert": ("ModernBert", BERT | {
        "num_hidden_layers": 4, "layer_types": [GLOBAL, LOCAL, LOCAL, GLOBAL], "local_attention": 12, "norm_eps": 1e-2,
        "rope_parameters": {LOCAL: rope(100.0), GLOBAL: rope(1e4)}, "cls_token_id": 1, "sep_token_id": 2,
    }),
    "bert": ("Bert", BERT | {"num_hidden_layers": 3, "layer_norm_eps": 1e-2}),
}  # fmt: skip
