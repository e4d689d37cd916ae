"""Keys of `config.json` that are refused by their names, and spellings of one key that must agree.

Numbers and flags that a family has with one value alone are changed in `test_changed_keys.py`.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from jaxpar.config.kinds import kind_models
from jaxpar.interop.config_json import differences, model_of
from jaxpar.interop.mapping.deepseek_keys import DeepSeekExperts
from tests.goldens.loading import NAMES
from tests.interop.folders import golden
from tests.sentences import refused

REFUSED = [
    ("llama", {"model_type": None}, ("model_type is missing", "jaxpar.models")),
    ("llama", {"model_type": "gemma3"}, ("'gemma3'", "expected its text_config")),
    ("llama", {"model_type": "qwen2_vl", "text_config": {}}, ("'qwen2_vl'", "gemma3, gemma3n, gemma4, mistral3")),
    ("llama", {"model_type": "gpt-oss"}, ("model_type", "gpt-oss", "did you mean gpt_oss?")),
    ("llama", {"model_type": "mistrall"}, ("model_type", "mistrall", "mistral")),
    ("llama", {"model_type": "deepseek_v32"}, ("deepseek_v32", "indexer", "index_topk")),
    ("qwen2", {"model_type": "Qwen_2"}, ("model_type", "Qwen_2", "mean qwen2?")),
    ("gemma3", {"attn_logit_softcapping": 30.0}, ("attn_logit_softcapping",)),
    ("llama", {"architectures": ["LlamaForTokenClassification"]}, ("architectures", "LlamaForCausalLM")),
    ("llama", {"hidden_act": "gelu"}, ("hidden_act", "gelu", "silu")),
    ("llama", {"hidden_size": None}, ("hidden_size", "null")),
    ("llama", {"hidden_size": "32"}, ("hidden_size", "32")),
    ("llama", {"rope_parameters": {"rope_type": "longrope", "factor": 4.0}},
     ("rope_parameters.rope_type", "longrope", "linear", "yarn")),
    ("llama", {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 4.0}},
     ("rope_scaling.type", "dynamic")),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, ("rope_parameters.factor", "missing")),
    ("phi3", {"rope_parameters": {"rope_type": "longrope"}}, ("rope_parameters.short_factor", "missing")),
    ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}},
     ("partial_rotary_factor", "0.75")),
    ("gemma3", {"layer_types": ["chunked_attention"] * 6}, ("layer_types", "chunked_attention", "sliding_attention")),
    ("gemma3", {"layer_types": ["full_attention"]}, ("layer_types", "6")),
    ("phimoe", {"num_experts_per_tok": 3}, ("num_experts_per_tok", "3", "2")),
    ("phimoe", {"router_jitter_noise": 1.5}, ("router_jitter_noise", "1.5", "0 to 1")),
    ("mistral4", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "partial_rotary_factor": 0.25,
     "llama_4_scaling_beta": 0.1}}, ("partial_rotary_factor", "0.25", "0.57")),
    ("solar_open", {"first_k_dense_replace": 1}, ("first_k_dense_replace", "1")),
    ("phimoe", {"rope_parameters": {"rope_type": "longrope", "short_mscale": 1.0, "long_mscale": 1.5}},
     ("rope_parameters.long_mscale", "1.5", "1.0")),
    ("mixtral", {"num_experts_per_tok": 9}, ("num_experts_per_tok", "9", "at most 6")),
    ("mixtral", {"num_local_experts": 0}, ("num_local_experts", "0", "at least 1")),
    ("gpt_oss", {"quantization_config": {"quant_method": "hqq"}}, ("quant_method", "hqq", "mxfp4")),
    ("mixtral", {"num_experts": 8}, ("num_local_experts", "6", "num_experts", "8")),
    ("deepseek_v3", {"num_local_experts": 4}, ("n_routed_experts", "8", "4")),
    ("gpt_oss", {"experts_per_token": 3}, ("num_experts_per_tok", "2", "experts_per_token", "3")),
    ("gpt2", {"max_position_embeddings": 128}, ("n_positions", "64", "max_position_embeddings", "128")),
    ("mistral", {"layer_types": ["full_attention"] * 2}, ("layer_types", "sliding_attention")),
    ("qwen2", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}, ("layer_types", "full_attention")),
    ("smollm3", {"layer_types": ["sliding_attention"] * 5, "sliding_window": 8}, ("layer_types", "full_attention")),
    ("qwen2", {"use_sliding_window": "false"}, ("use_sliding_window", "false")),
    ("gemma3", {"layer_types": None, "_sliding_window_pattern": 3}, ("_sliding_window_pattern", "3", "6")),
    ("deepseek_v3", {"n_group": ...}, ("n_group", "missing")),
    ("llama", {"vocab_size": None}, ("vocab_size", "null")),
    ("qwen3", {"quantization_config": "compressed-tensors"}, ("config_groups", "mapping")),
    ("qwen3", {"quantization_config": {"bits": 4}}, ("quantization_config", "qwen3")),
    ("mamba2", {"time_step_limit": [0.001, 0.1]}, ("time_step_limit", "[0.001, 0.1]", "0 and infinity")),
    ("qwen3_5", {"layer_types": ["sliding_attention"] * 3}, ("layer_types", "sliding_attention", "linear_attention")),
    ("nemotron_h", {"moe_latent_size": 8}, ("moe_latent_size", "8", "None")),
    ("nemotron_h", {"mlp_hidden_act": "silu"}, ("mlp_hidden_act", "silu", "relu2")),
    ("nemotron_h", {"layers_block_type": ["conv"]}, ("layers_block_type", "conv", "moe")),
    ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "MX"}, ("hybrid_override_pattern", "X")),
    ("kimi_linear", {"mla_use_nope": False}, ("mla_use_nope", "False", "True")),
    ("kimi_linear", {"moe_router_activation_func": "softmax"}, ("moe_router_activation_func", "softmax", "sigmoid")),
    ("kimi_linear", {"linear_attn_config": {"short_conv_kernel_size": 3}}, ("linear_conv_kernel_dim", "3", "4")),
    ("kimi_linear", {"linear_attn_config": {"gate_lower_bound": -5}}, ("linear_attn_config.gate_lower_bound", "-5")),
    ("minimax", {"sliding_window": 8}, ("sliding_window", "8", "None")),
    ("minimax", {"layer_types": ["sliding_attention"] * 3}, ("layer_types", "linear_attention")),
    ("minimax", {"mlp_alpha_factor": 0}, ("mlp_alpha_factor", "0", "a number above 0")),
    ("gemma3n", {"final_logit_softcapping": None}, ("final_logit_softcapping",)),  # its class has no null for it
    ("gemma4", {"head_dim": None}, ("head_dim", "None", "at least 1")),
    ("gemma4", {"num_key_value_heads": None}, ("num_key_value_heads", "None")),
    ("gemma4", {"hidden_size_per_layer_input": None}, ("hidden_size_per_layer_input", "None", "at least 1")),
    ("gemma4", {"per_layer_config": ..., "global_head_dim": None}, ("global_head_dim", "None", "at least 1")),
    ("gemma4", {"per_layer_config": {"1": {"head_dim": None}}}, ("per_layer_config", "None", "head_dim")),
    ("minimax", {"rotary_dim": 3}, ("rotary_dim", "minimax")),
    ("granitemoehybrid", {"num_experts_per_tok": 5}, ("num_experts_per_tok", "5", "at most 4")),
    ("granitemoehybrid", {"layer_types": ["mamba", "moe"]}, ("layer_types", "moe")),
    ("granitemoehybrid", {"position_embedding_type": "learned"}, ("position_embedding_type", "learned", "rope")),
    ("granite", {"logits_scaling": 0}, ("logits_scaling", "0")),
    ("gla_swa", {"attn_layers": [3]}, ("attn_layers", "3", "0 to 2")),
    ("gla_swa", {"attn_type_list": [1]}, ("attn_type_list", "attn_layers")),
    ("ernie4_5_moe", {"moe_norm_min": 0.1}, ("moe_norm_min", "0.1", "1e-6")),
    ("ernie4_5_moe", {"moe_layer_start_index": 5}, ("moe_layer_start_index", "5")),
    ("hunyuan_v1_dense", {"rope_parameters": {"rope_type": "linear", "alpha": 2.0, "factor": 2.0}},
     ("rope_parameters.rope_type", "linear", "dynamic")),
    ("hunyuan_v1_dense", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
     ("rope_parameters.rope_type", "dynamic")),
    ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ("rope_scaling", "rope_parameters")),
    ("dots1", {"num_key_value_heads": ...}, ("num_key_value_heads",)),
    ("hunyuan_v1_dense", {"use_cla": True}, ("use_cla", "True", "False")),
    ("hunyuan_v1_moe", {"group_limited_greedy": True}, ("group_limited_greedy", "True", "False")),
    ("hunyuan_v1_moe", {"num_shared_expert": [1, 2]}, ("num_shared_expert", "[1, 2]", "1")),
    ("hunyuan_v1_moe", {"moe_intermediate_size": 8}, ("moe_intermediate_size", "8", "16")),
    ("minimax_m2", {"rotary_dim": 14}, ("rotary_dim", "14", "12")),
    ("minimax_m2", {"attn_type_list": [1, 0]}, ("attn_type_list", "[1, 0]", "1 for")),
    ("dots1", {"norm_topk_prob": False}, ("norm_topk_prob", "False", "true")),
    ("gemma", {"hidden_act": "gelu_fast"}, ("hidden_act", "gelu_fast", "gelu_pytorch_tanh")),
    ("olmo3", {"rope_parameters": {"rope_type": "default"}}, ("rope_parameters.rope_type", "full_attention")),
    ("seed_oss", {"attention_bias": False, "attention_out_bias": True}, ("attention_out_bias", "True", "false")),
    ("arcee", {"hidden_act": "silu"}, ("hidden_act", "silu", "relu2")),
    ("ministral3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
     ("llama_4_scaling_beta", "None", "above 0")),
    ("llama", {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}}, ("llama_4_scaling_beta",)),
    ("olmo", {"clip_qkv": 0}, ("clip_qkv", "0")),
    ("cohere2", {"sliding_window": None}, ("sliding_window", "None")),
    ("gpt_neox", {"hidden_act": "relu"}, ("hidden_act", "relu", "gelu_new")),
    ("gpt_neox", {"rope_theta": 1e4}, ("rope_theta", "gpt_neox")),
    ("llama4", {"attention_chunk_size": None}, ("attention_chunk_size", "None", "a number")),
    ("llama4", {"layer_types": ["sliding_attention"] * 3}, ("layer_types", "chunked_attention")),
    ("llama4", {"moe_layers": [3]}, ("moe_layers", "3", "0 to 2")),
    ("llama4", {"num_experts_per_tok": 5}, ("num_experts_per_tok", "5", "at most 4")),
    ("llama4", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ("rope_parameters.rope_type", "yarn")),
    ("lfm2_moe", {"num_dense_layers": 4}, ("num_dense_layers", "4", "0 to 3")),
    ("lfm2", {"conv_L_cache": 1}, ("conv_L_cache", "1", "at least 2")),
    ("lfm2", {"layer_types": ["sliding_attention"] * 3}, ("layer_types", "conv")),
    ("lfm2", {"layer_types": None, "full_attn_idxs": "all"}, ("full_attn_idxs", "all", "a list")),
    ("lfm2", {"num_attention_heads": 3}, ("hidden_size", "16", "3")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changed", "parts"), REFUSED)
def test_a_key_that_is_not_supported_is_named(name: str, changed: dict[str, Any], parts: tuple[str, ...]):
    with refused("config.json", *parts):
        model_of(golden(name, **changed))


def test_layers_are_alike_where_gemma_4_has_none_that_differ():
    keys = golden("gemma4", per_layer_config=None)
    models = kind_models(model_of(keys)[1]).values()
    assert {(model.head_dim, model.kv_heads) for model in models} == {
        (keys.get("head_dim"), keys.get("num_key_value_heads"))
    }


def spellings(family: Any) -> Iterator[tuple[str, ...]]:
    """The spellings of each key that a family has several of."""
    for entry in (*family.entries, *family.layer_entries):
        several = [getattr(entry, name) for name in ("count", "per_token") if hasattr(entry, name)]
        if getattr(entry, "also", ()):
            several.append(entry.keys)
        if isinstance(entry, DeepSeekExperts):
            several.append(("n_routed_experts", "num_experts", "num_local_experts"))
        yield from (keys for keys in several if len(keys) > 1)


@pytest.mark.parametrize("name", NAMES)
def test_two_spellings_agree_or_are_refused(name: str):
    family, model = model_of(golden(name))
    for keys in spellings(family):
        present = next((key for key in keys if golden(name).get(key) is not None), None)
        if present is None:
            continue
        value = golden(name).get(present)
        for other in keys:
            alone = dict.fromkeys(keys, ...) | {other: value}
            assert differences(model_of(golden(name, **alone))[1], model) == []
            if other != present:
                with refused("config.json", present, other):
                    model_of(golden(name, **dict.fromkeys(keys, ...) | {present: value, other: value + 1}))


@pytest.mark.parametrize("name", ["qwen3_moe", "olmoe", "mixtral", "gpt_oss", "deepseek_v2"])
def test_the_number_of_experts_has_several_spellings(name: str):
    family, _ = model_of(golden(name))
    assert any({"num_experts", "num_local_experts"} <= set(keys) for keys in spellings(family))
