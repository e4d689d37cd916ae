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

REFUSED = {
    "a family": ("llama", {"model_type": "mistrall"}, ("model_type", "mistrall", "mistral")),
    "attention by an indexer": ("llama", {"model_type": "deepseek_v32"}, ("deepseek_v32", "indexer", "index_topk")),
    "a family by another spelling": ("qwen2", {"model_type": "Qwen_2"}, ("model_type", "Qwen_2", "mean qwen2?")),
    "a soft cap that transformers ignores": ("gemma3", {"attn_logit_softcapping": 30.0}, ("attn_logit_softcapping",)),
    "a class": ("llama", {"architectures": ["LlamaForTokenClassification"]}, ("architectures", "LlamaForCausalLM")),
    "an activation": ("llama", {"hidden_act": "gelu"}, ("hidden_act", "gelu", "silu")),
    "a missing size": ("llama", {"hidden_size": None}, ("hidden_size", "null")),
    "a size that is text": ("llama", {"hidden_size": "32"}, ("hidden_size", "32")),
    "a scaling": (
        "llama", {"rope_parameters": {"rope_type": "longrope", "factor": 4.0}},
        ("rope_parameters.rope_type", "longrope", "linear", "yarn"),
    ),
    "the same in transformers 4": (
        "llama", {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 4.0}},
        ("rope_scaling.type", "dynamic"),
    ),
    "a scaling without its factor": (
        "llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, ("rope_parameters.factor", "missing")
    ),
    "long rope without factors": (
        "phi3", {"rope_parameters": {"rope_type": "longrope"}}, ("rope_parameters.short_factor", "missing")
    ),
    "a part of each head": (
        "llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}},
        ("partial_rotary_factor", "0.75"),
    ),
    "a type of layers": (
        "gemma3", {"layer_types": ["chunked_attention"] * 6}, ("layer_types", "chunked_attention", "sliding_attention")
    ),
    "too few types of layers": ("gemma3", {"layer_types": ["full_attention"]}, ("layer_types", "6")),
    "three experts of SparseMixer": ("phimoe", {"num_experts_per_tok": 3}, ("num_experts_per_tok", "3", "2")),
    "noise that is no share": ("phimoe", {"router_jitter_noise": 1.5}, ("router_jitter_noise", "1.5", "0 to 1")),
    "a share of heads that their widths are not": (
        "mistral4",
        {"rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "partial_rotary_factor": 0.25, "llama_4_scaling_beta": 0.1
        }},
        ("partial_rotary_factor", "0.25", "0.57"),
    ),
    "dense layers where there are none": ("solar_open", {"first_k_dense_replace": 1}, ("first_k_dense_replace", "1")),
    "two magnitudes": (
        "phimoe", {"rope_parameters": {"rope_type": "longrope", "short_mscale": 1.0, "long_mscale": 1.5}},
        ("rope_parameters.long_mscale", "1.5", "1.0"),
    ),
    "more experts for a token than there are": (
        "mixtral", {"num_experts_per_tok": 9}, ("num_experts_per_tok", "9", "at most 6")
    ),
    "a number of experts that is none": ("mixtral", {"num_local_experts": 0}, ("num_local_experts", "0", "at least 1")),
    "quantization of another kind": (
        "gpt_oss", {"quantization_config": {"quant_method": "hqq"}}, ("quant_method", "hqq", "mxfp4")
    ),
    "two numbers of experts": ("mixtral", {"num_experts": 8}, ("num_local_experts", "6", "num_experts", "8")),
    "two numbers of experts of DeepSeek": ("deepseek_v3", {"num_local_experts": 4}, ("n_routed_experts", "8", "4")),
    "two numbers of a token's experts": (
        "gpt_oss", {"experts_per_token": 3}, ("num_experts_per_tok", "2", "experts_per_token", "3")
    ),
    "two numbers of positions": (
        "gpt2", {"max_position_embeddings": 128}, ("n_positions", "64", "max_position_embeddings", "128")
    ),
    "types of layers that the window contradicts": (
        "mistral", {"layer_types": ["full_attention"] * 2}, ("layer_types", "sliding_attention")
    ),
    "types of layers with a window that is off": (
        "qwen2", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}, ("layer_types", "full_attention")
    ),
    "types of layers of a family without windows": (
        "smollm3", {"layer_types": ["sliding_attention"] * 5, "sliding_window": 8}, ("layer_types", "full_attention")
    ),
    "a switch that is text": ("qwen2", {"use_sliding_window": "false"}, ("use_sliding_window", "false")),
    "a pattern that transformers writes and does not read": (
        "gemma3", {"layer_types": None, "_sliding_window_pattern": 3}, ("_sliding_window_pattern", "3", "6")
    ),
    "groups that DeepSeek's code and transformers take to be others": (
        "deepseek_v3", {"n_group": ...}, ("n_group", "missing")
    ),
    "no vocabulary": ("llama", {"vocab_size": None}, ("vocab_size", "null")),
    "a format without groups": ("qwen3", {"quantization_config": "compressed-tensors"}, ("config_groups", "mapping")),
    "a key that nobody knows": ("qwen3", {"quantization_config": {"bits": 4}}, ("quantization_config", "qwen3")),
    "limits of steps": (
        "mamba2", {"time_step_limit": [0.001, 0.1]}, ("time_step_limit", "[0.001, 0.1]", "0 and infinity")
    ),
    "windows of a hybrid": (
        "qwen3_5", {"layer_types": ["sliding_attention"] * 3}, ("layer_types", "sliding_attention", "linear_attention")
    ),
    "experts of a latent width": ("nemotron_h", {"moe_latent_size": 8}, ("moe_latent_size", "8", "None")),
    "a feed-forward with a gate": ("nemotron_h", {"mlp_hidden_act": "silu"}, ("mlp_hidden_act", "silu", "relu2")),
    "a block that nobody knows": ("nemotron_h", {"layers_block_type": ["conv"]}, ("layers_block_type", "conv", "moe")),
    "a letter that nobody knows": (
        "nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "MX"}, ("hybrid_override_pattern", "X")
    ),
    "positions of latent attention": ("kimi_linear", {"mla_use_nope": False}, ("mla_use_nope", "False", "True")),
    "a router of a softmax": (
        "kimi_linear", {"moe_router_activation_func": "softmax"}, ("moe_router_activation_func", "softmax", "sigmoid")
    ),
    "a convolution of a nested mapping": (
        "kimi_linear", {"linear_attn_config": {"short_conv_kernel_size": 3}}, ("linear_conv_kernel_dim", "3", "4")
    ),
    "a nested key that nobody knows": (
        "kimi_linear", {"linear_attn_config": {"gate_lower_bound": -5}}, ("linear_attn_config.gate_lower_bound", "-5")
    ),
    "a window beside lightning attention": ("minimax", {"sliding_window": 8}, ("sliding_window", "8", "None")),
    "windows of MiniMax": ("minimax", {"layer_types": ["sliding_attention"] * 3}, ("layer_types", "linear_attention")),
    "a factor of residuals that is none": (
        "minimax", {"mlp_alpha_factor": 0}, ("mlp_alpha_factor", "0", "a number above 0")
    ),
    "a width of heads that is null": ("gemma4", {"head_dim": None}, ("head_dim", "None", "at least 1")),
    "heads of keys that are null": ("gemma4", {"num_key_value_heads": None}, ("num_key_value_heads", "None")),
    "a width of inputs that is null": (
        "gemma4", {"hidden_size_per_layer_input": None}, ("hidden_size_per_layer_input", "None", "at least 1")
    ),
    "a width of heads of layers without a window that is null": (
        "gemma4", {"per_layer_config": ..., "global_head_dim": None}, ("global_head_dim", "None", "at least 1")
    ),
    "a width of heads of a layer that is null": (
        "gemma4", {"per_layer_config": {"1": {"head_dim": None}}}, ("per_layer_config", "None", "head_dim")
    ),
    "a part of each head of MiniMax": ("minimax", {"rotary_dim": 3}, ("rotary_dim", "minimax")),
    "experts of a hybrid": ("granitemoehybrid", {"num_experts_per_tok": 5}, ("num_experts_per_tok", "5", "at most 4")),
    "a type of layers of Granite": ("granitemoehybrid", {"layer_types": ["mamba", "moe"]}, ("layer_types", "moe")),
    "learned positions of Granite": (
        "granitemoehybrid", {"position_embedding_type": "learned"}, ("position_embedding_type", "learned", "rope")
    ),
    "a factor of logits that is none": ("granite", {"logits_scaling": 0}, ("logits_scaling", "0")),
    "attention in a layer that there is not": ("gla_swa", {"attn_layers": [3]}, ("attn_layers", "3", "0 to 2")),
    "two lists of layers of SpikingBrain": ("gla_swa", {"attn_type_list": [1]}, ("attn_type_list", "attn_layers")),
    "a floor of a sum": ("ernie4_5_moe", {"moe_norm_min": 0.1}, ("moe_norm_min", "0.1", "1e-6")),
    "no layer with experts": ("ernie4_5_moe", {"moe_layer_start_index": 5}, ("moe_layer_start_index", "5")),
    "a stretched base of another type": (
        "hunyuan_v1_dense", {"rope_parameters": {"rope_type": "linear", "alpha": 2.0, "factor": 2.0}},
        ("rope_parameters.rope_type", "linear", "dynamic"),
    ),
    "a base that grows with the text": (
        "hunyuan_v1_dense", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        ("rope_parameters.rope_type", "dynamic"),
    ),
    "a scaling of all layers of ModernBERT": (
        "modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ("rope_scaling", "rope_parameters")
    ),
    "dots.llm1 without its number of key heads": ("dots1", {"num_key_value_heads": ...}, ("num_key_value_heads",)),
    "attention across layers": ("hunyuan_v1_dense", {"use_cla": True}, ("use_cla", "True", "False")),
    "experts by groups": ("hunyuan_v1_moe", {"group_limited_greedy": True}, ("group_limited_greedy", "True", "False")),
    "several shared experts": ("hunyuan_v1_moe", {"num_shared_expert": [1, 2]}, ("num_shared_expert", "[1, 2]", "1")),
    "experts of another width": ("hunyuan_v1_moe", {"moe_intermediate_size": 8}, ("moe_intermediate_size", "8", "16")),
    "a rotary width above a head's": ("minimax_m2", {"rotary_dim": 14}, ("rotary_dim", "14", "12")),
    "another mixer of MiniMax-M2": ("minimax_m2", {"attn_type_list": [1, 0]}, ("attn_type_list", "[1, 0]", "1 for")),
    "weights as they are": ("dots1", {"norm_topk_prob": False}, ("norm_topk_prob", "False", "true")),
    "an activation of Gemma": ("gemma", {"hidden_act": "gelu_fast"}, ("hidden_act", "gelu_fast", "gelu_pytorch_tanh")),
    "a mapping without types of layers": (
        "olmo3", {"rope_parameters": {"rope_type": "default"}}, ("rope_parameters.rope_type", "full_attention")
    ),
    "a bias of the output alone": (
        "seed_oss", {"attention_bias": False, "attention_out_bias": True}, ("attention_out_bias", "True", "false")
    ),
    "a gate in the feed-forward": ("arcee", {"hidden_act": "silu"}, ("hidden_act", "silu", "relu2")),
    "no scale of temperatures": (
        "ministral3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
        ("llama_4_scaling_beta", "None", "above 0"),
    ),
    "a temperature elsewhere": (
        "llama", {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}}, ("llama_4_scaling_beta",)
    ),
    "a limit that is none": ("olmo", {"clip_qkv": 0}, ("clip_qkv", "0")),
    "layers without windows of Cohere": ("cohere2", {"sliding_window": None}, ("sliding_window", "None")),
    "an activation of NeoX": ("gpt_neox", {"hidden_act": "relu"}, ("hidden_act", "relu", "gelu_new")),
    "a base that NeoX does not read": ("gpt_neox", {"rope_theta": 1e4}, ("rope_theta", "gpt_neox")),
    "chunks of no size": ("llama4", {"attention_chunk_size": None}, ("attention_chunk_size", "None", "a number")),
    "windows of Llama 4": (
        "llama4", {"layer_types": ["sliding_attention"] * 3}, ("layer_types", "chunked_attention")
    ),
    "experts in a layer that there is not": ("llama4", {"moe_layers": [3]}, ("moe_layers", "3", "0 to 2")),
    "experts of Llama 4 that there are not": (
        "llama4", {"num_experts_per_tok": 5}, ("num_experts_per_tok", "5", "at most 4")
    ),
    "a scaling that Llama 4's norms would undo": (
        "llama4", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ("rope_parameters.rope_type", "yarn")
    ),
    "more dense layers than there are": ("lfm2_moe", {"num_dense_layers": 4}, ("num_dense_layers", "4", "0 to 3")),
    "a convolution of one token": ("lfm2", {"conv_L_cache": 1}, ("conv_L_cache", "1", "at least 2")),
    "windows of LFM2": ("lfm2", {"layer_types": ["sliding_attention"] * 3}, ("layer_types", "conv")),
    "layers that are no list": (
        "lfm2", {"layer_types": None, "full_attn_idxs": "all"}, ("full_attn_idxs", "all", "a list")
    ),
    "channels in no heads": ("lfm2", {"num_attention_heads": 3}, ("hidden_size", "16", "3")),
}  # fmt: skip


def test_a_family_is_guessed_only_where_most_keys_are_its():
    with refused("config.json", "model_type", "expected one of those") as caught:
        model_of(golden("gpt2", model_type="Qwen_2"))
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("case", REFUSED)
def test_a_key_that_is_not_supported_is_named(case: str):
    name, changed, parts = REFUSED[case]
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
