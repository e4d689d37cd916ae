"""`config.json` of releases: read as presets, with the number of parameters stated, and written from presets."""

import json
from typing import Any

import pytest

from jaxpar.config.presets import PRESETS
from jaxpar.interop.config_json import config_of, differences, family_for, model_of
from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.mapping.multimodal import text_part
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.checks.validate import validate
from tests.config.test_presets import config_with
from tests.goldens.loading import FOLDER

LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False,
    "aux_loss_alpha": 0.001, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
    "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True,
    "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128,
    "vocab_size": 129280,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    # as released, in the spelling of transformers 4; what has no effect is left out
    "llama3-1b": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "mlp_bias": False,
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": LLAMA3 | {"rope_type": "llama3"}, "rope_theta": 500000.0,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 128256,
    },
    "llama2-7b": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": False, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False,
        "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
        "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "olmoe-1b-7b": {
        "model_type": "olmoe", "architectures": ["OlmoeForCausalLM"], "attention_bias": False, "clip_qkv": None,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 1024, "norm_topk_prob": False,
        "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16,
        "num_key_value_heads": 16, "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 10000.0, "router_aux_loss_coef": 0.01, "tie_word_embeddings": False, "vocab_size": 50304,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "attention_bias": True,
        "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
        "initial_context_length": 4096, "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12, "num_attention_heads": 64,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
        "output_router_logits": False, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []},
        "rms_norm_eps": 1e-05, "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": False,
        },
        "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
        "tie_word_embeddings": False, "vocab_size": 201088,
    },
    "mistral-7b": {
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 24, "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 32768, "tie_word_embeddings": True, "use_mrope": False, "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_window_layers": 28,
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "gemma2-2b": {
        "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
        "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000,
    },
    "gemma3-1b": {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": None,
        "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4, "num_hidden_layers": 26,
        "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
    "olmo2-1b": {
        "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "num_attention_heads": 16, "num_hidden_layers": 16, "num_key_value_heads": 16,
        "rms_norm_eps": 1e-06, "rope_theta": 500000, "tie_word_embeddings": False, "vocab_size": 100352,
    },
    "smollm2-135m": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 576,
        "intermediate_size": 1536, "is_llama_config": True, "num_attention_heads": 9, "num_hidden_layers": 30,
        "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False,
        "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True, "vocab_size": 49152,
    },
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "first_k_dense_replace": 1, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
        "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
        "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16, "num_experts_per_tok": 6,
        "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True,
        "tie_word_embeddings": False, "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128,
        "vocab_size": 102400,
    },
    "deepseek-v3": DEEPSEEK_V3,
    "kimi-k2": DEEPSEEK_V3 | {
        "model_type": "kimi_k2", "first_k_dense_replace": 1, "n_group": 1, "n_routed_experts": 384,
        "num_attention_heads": 64, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
        "rope_scaling": {
            "beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "topk_group": 1, "vocab_size": 163840,
    },
    "qwen1.5-moe-a2.7b": {
        "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "decoder_sparse_step": 1,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632, "max_window_layers": 21,
        "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_attention_heads": 16, "num_experts": 60,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16, "output_router_logits": False,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "glm4-9b": {
        "model_type": "glm4", "architectures": ["Glm4ForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 13696,
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 151552,
    },
    "gpt2-124m": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
        "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "summary_type": "cls_index", "vocab_size": 50257,
    },
}  # fmt: skip
RELEASED: dict[str, dict[str, Any]] = json.loads((FOLDER / "published.json").read_text())
"""`config.json` of releases by their repositories, with all keys, and their numbers of parameters; `source` where both
are of transformers' class, whose documentation names the release."""
PUBLISHED |= {
    "gpt-neox-20b": RELEASED["EleutherAI/gpt-neox-20b"]["config"],
    "apertus-8b": RELEASED["swiss-ai/Apertus-8B-Instruct-2509"]["config"],
    "bert-base": RELEASED["google-bert/bert-base-uncased"]["config"],
    "modernbert-base": RELEASED["answerdotai/ModernBERT-base"]["config"],
    "gemma-7b": RELEASED["google/gemma-7b"]["config"],
    "olmo-7b": RELEASED["allenai/OLMo-7B-hf"]["config"],
    "stablelm-3b": RELEASED["stabilityai/stablelm-3b-4e1t"]["config"],
    "ernie4.5-0.3b": RELEASED["baidu/ERNIE-4.5-0.3B-PT"]["config"],
    "ernie4.5-21b-a3b": RELEASED["baidu/ERNIE-4.5-21B-A3B-PT"]["config"],
    "kimi-linear-48b-a3b": RELEASED["moonshotai/Kimi-Linear-48B-A3B-Instruct"]["config"],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_config_json_of_a_release_is_the_preset(name: str):
    assert differences(model_of(HFConfig("config.json", PUBLISHED[name]))[1], PRESETS[name]) == []


@pytest.mark.parametrize("name", RELEASED)
def test_a_release_is_read_and_has_its_parameters(name: str):
    """Without the images of those that take some; a number is null where no page states it exactly."""
    classes = {family.model_type: family.architecture for family in FAMILIES.values()}
    _, model = model_of(text_part(HFConfig("config.json", RELEASED[name]["config"]), classes))
    assert RELEASED[name]["parameters"] in (None, parameter_count(model, padded=False))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_goes_to_config_json_and_back(name: str):
    family = family_for(PRESETS[name])
    written = json.loads(json.dumps(config_of(family, PRESETS[name], {}, length=4096)))
    back, model = model_of(HFConfig("config.json", written))
    assert (back, differences(model, PRESETS[name])) == (family, [])
    validate(config_with(model))
