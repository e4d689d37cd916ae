"""`config.json` to a model section and back; what our model does not have is refused by its key."""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpar.config import Config, UserError
from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.config.mappings.attention_temperature import AttentionTemperature
from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.config.presets import PRESETS
from jaxpar.config.schema.model import ModelConfig, Pattern
from jaxpar.interop.config_json import config_of, differences, family_for, model_of
from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.mapping.family import tensors_of
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.mapping.layer_packing import layer_models, pattern_of
from jaxpar.interop.mapping.multimodal import text_part
from jaxpar.interop.sources.source import check_fits
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.checks.validate import validate
from tests.goldens.loading import FOLDER, NAMES
from tests.sentences import refused

LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
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
    "deepseek-v3": {
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
    },
    "kimi-k2": {
        "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False,
        "aux_loss_alpha": 0.001, "ep_size": 1, "first_k_dense_replace": 1, "hidden_act": "silu",
        "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "moe_intermediate_size": 2048,
        "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "quantization_config": {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
        },
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "seq_aux": True,
        "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128,
        "vocab_size": 163840,
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
"""`config.json` of releases by their repositories, with all keys, and their numbers of parameters."""


def golden(name: str, **changed: Any) -> HFConfig:
    """The `config.json` of a golden, with some keys changed; `...` removes a key."""
    values = json.loads((FOLDER / name / "config.json").read_text()) | changed
    return HFConfig("config.json", {key: value for key, value in values.items() if value is not ...})


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_config_json_of_a_release_is_the_preset(name: str):
    assert differences(model_of(HFConfig("config.json", PUBLISHED[name]))[1], PRESETS[name]) == []


@pytest.mark.parametrize("name", RELEASED)
def test_a_release_is_read_and_has_its_parameters(name: str):
    """Without the images of those that take some; a number is null where no page states it exactly."""
    classes = {family.model_type: family.architecture for family in FAMILIES.values()}
    _, model = model_of(text_part(HFConfig("config.json", RELEASED[name]["config"]), classes))
    assert RELEASED[name]["parameters"] in (None, parameter_count(model, padded=False))


@pytest.mark.matrix(quick=("llama4", "mixtral"), ci=4)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_a_family_cannot_express_is_refused(name: str):
    _, model = model_of(golden(name))
    for family in FAMILIES.values():
        with suppress(UserError):
            config_of(family, model, {}, length=128)


@pytest.mark.parametrize(("stated", "grows"), [(4, True), (True, True), (0, False), (False, False)])
def test_the_temperature_of_llama_4_may_be_a_number_as_published(stated: object, grows: bool):
    _, model = model_of(golden("llama4", attn_temperature_tuning=stated))
    assert any(layer.attention_temperature is not None for layer in layer_models(model)) == grows


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_goes_to_config_json_and_back(name: str):
    family = family_for(PRESETS[name])
    written = json.loads(json.dumps(config_of(family, PRESETS[name], {}, length=4096)))
    back, model = model_of(HFConfig("config.json", written))
    assert (back, differences(model, PRESETS[name])) == (family, [])
    validate(Config(model=model))


def test_latent_attention_may_be_named_beside_its_widths():
    model = PRESETS["deepseek-v2-lite"]
    named = replace(model, mixer="latent_attention")
    assert differences(named, model) == [] and family_for(named) == family_for(model)


def test_experts_that_sent_less_in_training_are_exported_like_others():
    """Clusters, drops and losses change how a model is trained, not what it computes then."""
    preset = PRESETS["mixtral-8x7b"]
    assert preset.experts is not None
    trained = {"clusters": {"share": 0.5, "residual": 0.5}, "capacity_factor": 1.5, "sequence_loss": 0.1}
    model = replace(preset, experts=replace(preset.experts, **trained))
    written = HFConfig("config.json", config_of(family_for(preset), model, {}, length=4096))
    assert differences(model_of(written)[1], model) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_config_json_of_transformers_5_goes_both_ways(name: str):
    family, model = model_of(golden(name))
    again = model_of(HFConfig("config.json", config_of(family, model, {}, length=128)))
    assert again[0] is family and differences(again[1], model) == []


def test_yarn_with_each_of_its_keys_goes_both_ways():
    scaling = {
        "rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 16, "beta_slow": 2,
        "mscale": 0.707, "mscale_all_dim": 0.5, "truncate": False, "attention_factor": 1.25,
    }  # fmt: skip
    keys = {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": scaling}
    family, model = model_of(golden("llama", **keys))
    assert config_of(family, model, {}, length=128)["rope_scaling"] == scaling
    of_transformers = {"attention_factor": None, "mscale": None, "mscale_all_dim": None, "truncate": None}
    family, plain = model_of(golden("llama", **keys | {"rope_scaling": scaling | of_transformers}))
    written = config_of(family, plain, {}, length=128)["rope_scaling"]
    assert written == {key: value for key, value in scaling.items() if key not in of_transformers} | {"truncate": True}


JUNK = (None, True, "x", -1, 0, 2.5, 1e300, 10**30, [], ["x"], [None] * 6, {}, {"x": 1}, {"rope_type": []})


@pytest.mark.matrix(quick=("deepseek_v3", "gemma3", "granitemoehybrid"), ci=4)
@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_key_holds_there_is_a_model_or_a_sentence(name: str):
    for key in golden(name).values:
        for junk in JUNK:
            sentence = "config.json: it is a model"
            try:
                model_of(golden(name, **{key: junk}))
            except UserError as error:
                sentence = str(error)
            assert sentence.startswith("config.json: ") and sentence.isprintable()


def test_a_window_that_is_off_may_be_0():
    """As transformers 5 writes it for Qwen2-MoE."""
    off = {"use_sliding_window": False, "sliding_window": 0, "layer_types": ...}
    _, model = model_of(golden("qwen2_moe", **off))
    assert (model.window, model.kinds) == (None, {})


def test_qwen_with_windows_in_its_last_layers():
    """By `max_window_layers`, as before transformers had `layer_types`."""
    keys = {"layer_types": None, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    _, model = model_of(golden("qwen2", **keys))
    assert model.kinds == {"global": {}, "local": {"window": 8}}
    assert layer_kinds(model) == ("global", "local")


@pytest.mark.parametrize(
    ("kinds", "pattern"),
    [
        ("abab", Pattern(("a", "b"))),
        ("aab" * 3 + "a", Pattern(("a", "a", "b"), suffix=("a",))),
        ("b" + "ca" * 4, Pattern(("c", "a"), prefix=("b",))),
    ],
)
def test_the_shortest_pattern_is_found(kinds: str, pattern: Pattern):
    assert pattern_of(list(kinds)) == pattern


def test_the_pattern_of_thousands_of_layers_in_no_order_is_found_at_once():
    kinds = np.random.default_rng(0).choice(["a", "b"], 3000).tolist()
    pattern = pattern_of(kinds)
    rest = len(kinds) - len(pattern.prefix) - len(pattern.suffix)
    assert [*pattern.prefix, *pattern.unit * (rest // len(pattern.unit)), *pattern.suffix] == kinds


@pytest.mark.parametrize(
    ("name", "key", "ours", "wanted"),
    [
        ("mixtral", "rms_norm_eps", "norm_epsilon", 1e-5), ("qwen3", "rms_norm_eps", "norm_epsilon", 1e-6),
        ("gpt_oss", "sliding_window", "window", 128), ("smollm3", "tie_word_embeddings", "tied", True),
        ("ministral3", "rope_parameters", "rope", RopeConfig(
            1e6, scaling="yarn", factor=16.0, original_length=16384, mscale=1.0, mscale_all_dim=1.0
        )),
        ("ministral3", "rope_parameters", "attention_temperature", AttentionTemperature(16384, 0.1)),
        ("stablelm", "rope_parameters", "rope", RopeConfig(partial=0.25)),
        ("gpt_neox", "rope_parameters", "rope", RopeConfig(partial=0.25)),
        ("gpt_neox", "use_parallel_residual", "norm_placement", "parallel_norms"),
        ("cohere", "rope_parameters", "rope", RopeConfig(base=5e5)), ("cohere", "logit_scale", "logit_divisor", 16.0),
        ("cohere2", "sliding_window", "window", 4096), ("starcoder2", "tie_word_embeddings", "tied", True),
        ("gemma", "tie_word_embeddings", "tied", True), ("olmo", "clip_qkv", "qkv_clip", None),
        ("seed_oss", "attention_bias", "attention_bias", "qkv"), ("arcee", "rms_norm_eps", "norm_epsilon", 1e-5),
        ("phi3", "tie_word_embeddings", "tied", False), ("mixtral", "rope_parameters", "rope", RopeConfig(base=1e6)),
    ],
)  # fmt: skip
def test_what_is_absent_is_what_transformers_takes(name: str, key: str, ours: str, wanted: object):
    """The defaults of the families' configurations in transformers 5.24."""
    models = kind_models(model_of(golden(name, **{key: ...}))[1]).values()
    assert wanted in [getattr(model, ours) for model in models]


@pytest.mark.parametrize(("model_type", "near"), [("gpt-oss", "gpt_oss"), ("Llama", "llama")])
def test_a_type_that_is_spelled_otherwise_is_named(model_type: str, near: str):
    with refused("model_type", model_type, f"did you mean {near}?"):
        model_of(golden("llama", model_type=model_type))


@pytest.mark.parametrize("model_type", ["olmo_hybrid", "recurrent_gemma", "qwen2_vl", "gemma3", "jamba", None, 3])
def test_another_architecture_with_a_name_alike_is_not_suggested(model_type: object):
    with refused("model_type", str(model_type), "expected one of llama") as caught:
        model_of(golden("llama", model_type=model_type))
    assert "did you mean" not in str(caught.value)


def test_what_no_family_can_hold_is_refused():
    with refused("model", "no family"):
        family_for(replace(PRESETS["llama3-1b"], activation="gelu"))
    with refused("model", "no family"):
        family_for(replace(PRESETS["llama3-1b"], window=128, attention_bias=True))


def test_a_model_goes_to_the_family_that_can_hold_it():
    found = {name: family_for(PRESETS[name]).name for name in ("llama3-8b", "mistral-7b", "qwen2.5-7b", "gemma3-4b")}
    assert found == {"llama3-8b": "llama", "mistral-7b": "mistral", "qwen2.5-7b": "qwen2", "gemma3-4b": "gemma3"}
    assert differences(PRESETS["llama3-8b"], PRESETS["llama3-8b"]) == []
    assert [one.key for one in differences(PRESETS["llama3-8b"], replace(PRESETS["llama3-8b"], window=8))] == ["window"]


def test_experts_that_differ_are_named_by_the_keys_in_which_they_do():
    model = PRESETS["mixtral-8x7b"]
    assert model.experts is not None
    other = replace(model, experts=replace(model.experts, router="sigmoid", router_options={"scale": 2.5}))
    [found] = map(str, differences(model, other))
    assert "router (top_k_softmax, not sigmoid)" in found and "router_options ({}, not {scale: 2.5})" in found
    dense = replace(model, experts=None)
    text = "; ".join(map(str, differences(model, dense)))
    assert "model.experts ({count: 8, width: 14336}, not null)" in text and "ExpertsConfig" not in text


@dataclass(frozen=True)
class Given8x7B:
    """Weights of Mixtral's shape, of which nothing is read."""

    model: ModelConfig = PRESETS["mixtral-8x7b"]
    path: Path = Path("mixtral")


def test_a_router_that_needs_state_which_the_weights_lack_is_refused_by_its_key():
    model = Given8x7B.model
    assert model.experts is not None
    for router in ("sigmoid", "noisy_top_k", "cosine", "hash"):
        with refused(f"model.experts.router (top_k_softmax, not {router})", "run.init_from", "mixtral") as caught:
            source: Any = Given8x7B()
            check_fits(source, replace(model, experts=replace(model.experts, router=router)), "run.init_from")
        assert "ExpertsConfig" not in str(caught.value) and "count" not in str(caught.value)


def test_the_layers_of_nemotron_are_named_or_letters():
    _, model = model_of(golden("nemotron_h"))
    older = {"layers_block_type": ..., "hybrid_override_pattern": "ME*-"}
    assert differences(model_of(golden("nemotron_h", **older))[1], model) == []
    assert (
        differences(model_of(golden("nemotron_h", layers_block_type=["mamba", "moe", "attention", "mlp"]))[1], model)
        == []
    )


def test_the_stretched_base_of_hunyuan_is_read_as_one_base():
    """As published; keys beside `alpha` have no effect."""
    scaling = {
        "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "type": "dynamic",
    }  # fmt: skip
    published = {
        "rope_parameters": ..., "rope_scaling": scaling, "rope_theta": 10000.0, "head_dim": 128,
        "use_rotary_pos_emb": True,
    }  # fmt: skip
    family, model = model_of(golden("hunyuan_v1_dense", **published))
    assert (model.rope.scaling, model.rope.base) == ("none", pytest.approx(1e4 * 1000 ** (128 / 126)))
    written = config_of(family, model, {}, length=128)
    assert (written["rope_scaling"], written["rope_theta"]) == (None, model.rope.base)


def test_local_layers_of_modernbert_may_have_a_scaling():
    scalings = {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_type": "linear", "factor": 2.5}}
    family, model = model_of(golden("modernbert", rope_parameters=scalings))
    assert {(one.rope.scaling, one.rope.factor) for one in layer_models(model) if one.window} == {("linear", 2.5)}
    assert config_of(family, model, {}, length=128)["rope_parameters"]["sliding_attention"]["factor"] == 2.5


def test_layers_of_hunyuan_may_use_different_numbers_of_experts():
    family, model = model_of(golden("hunyuan_v1_moe", moe_topk=[2, 3], num_shared_expert=[1, 1]))
    assert [one.experts and one.experts.per_token for one in layer_models(model)] == [2, 3]
    assert config_of(family, model, {}, length=128)["moe_topk"] == [2, 3]


def test_a_part_of_the_head_of_minimax_m2_is_its_width_as_published():
    family, model = model_of(golden("minimax_m2", rope_parameters=..., rope_theta=1e3, rotary_dim=6))
    assert differences(model_of(golden("minimax_m2"))[1], model) == []
    written = config_of(family, model, {}, length=128)
    assert (written["rotary_dim"], written["partial_rotary_factor"]) == (6, 0.5)


def test_every_other_layer_of_ernie_may_have_experts():
    keys = {"num_hidden_layers": 6, "moe_layer_end_index": -1, "moe_layer_interval": 2}
    family, model = model_of(golden("ernie4_5_moe", **keys))
    assert [one.experts is not None for one in layer_models(model)] == [False, True] * 3
    written = config_of(family, model, {}, length=128)
    assert [written[f"moe_layer_{name}"] for name in ("start_index", "end_index", "interval")] == [1, 5, 2]


def test_the_feed_forward_of_lfm2_is_as_wide_as_published():
    """LFM2-1.2B states 12288, of which two thirds are 8192; LFM2-350M 6656, which is 4608 in multiples of 256."""
    for stated, width, changed in (
        (12288, 8192, {}),
        (6656, 4608, {}),
        (6656, 6656, {"block_auto_adjust_ff_dim": False}),
    ):
        keys = {"intermediate_size": ..., "block_ff_dim": stated, "block_ffn_dim_multiplier": 1.0} | changed
        assert model_of(golden("lfm2", **{"block_multiple_of": 256} | keys))[1].mlp == width


def test_layers_of_lfm2_may_be_named_by_indices():
    by_indices = {"layer_types": ..., "full_attn_idxs": [1]}
    assert differences(*(model_of(golden("lfm2", **one))[1] for one in ({}, by_indices))) == []


def test_layers_of_llama_4_are_those_of_its_defaults():
    """As published, of Maverick: every other layer has experts, every fourth no positions, all others chunks."""
    absent = dict.fromkeys(("no_rope_layers", "layer_types", "moe_layers", "attention_chunk_size", "floor_scale"), ...)
    assert model_of(golden("llama4", **absent)) == model_of(golden("llama4", **absent | {"no_rope_layers": []}))
    _, model = model_of(golden("llama4", num_hidden_layers=8, **absent))
    layers = [kind_models(model)[kind] for kind in layer_kinds(model)]
    assert [one.experts is not None for one in layers] == [False, True] * 4
    assert [(one.chunk, one.position) for one in layers] == [*[(8192, "rope")] * 3, (None, "none")] * 2
    assert [getattr(one.attention_temperature, "floor", None) for one in layers] == [None, None, None, 8192] * 2
    assert [one.qk_norm for one in layers] == [*["unweighted"] * 3, False] * 2


def test_granite_hybrids_may_lack_experts_and_state_widths_and_layers_as_published():
    _, model = model_of(golden("granitemoehybrid"))
    older = {"layer_types": ["mamba", "attention"], "mamba_d_head": "auto"}
    assert differences(model_of(golden("granitemoehybrid", **older))[1], model) == []
    family, dense = model_of(golden("granitemoehybrid", num_local_experts=0, position_embedding_type="nope"))
    assert (dense.experts, dense.mlp, dense.position) == (None, 24, "none")
    made = config_of(family, dense, {}, length=128)
    assert (made["num_local_experts"], made["shared_intermediate_size"]) == (0, 24)
    names = [tensor.name for tensor in tensors_of(family, dense)]
    assert "model.layers.0.shared_mlp.input_linear.weight" in names and not any("sparse" in name for name in names)


def test_the_layers_of_kimi_are_named_or_lists_of_their_numbers():
    """As published: numbered from 1, in a mapping that wins over the keys beside it."""
    _, model = model_of(golden("kimi_linear"))
    nested = {"full_attn_layers": [2], "kda_layers": [1], "num_heads": 4, "head_dim": 6, "short_conv_kernel_size": 4}
    older = {"layer_types": ..., "mlp_layer_types": ..., "first_k_dense_replace": 1, "linear_head_dim": ...}
    published = golden("kimi_linear", linear_attn_config=nested, linear_num_heads=7, head_dim=72, **older)
    assert differences(model_of(published)[1], model) == []


def test_a_base_of_olmo_3_outside_its_mappings_is_that_of_global_layers_as_in_transformers():
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
    _, model = model_of(golden("olmo3", rope_parameters=None, rope_theta=1e4, rope_scaling=scaling))
    ropes = {one.window: (one.rope.base, one.rope.scaling) for one in kind_models(model).values()}
    assert ropes == {None: (1e4, "yarn"), 7: (5e5, "none")}


def test_layers_of_exaone_rotate_if_they_have_a_window_or_none_has():
    """As published: the 32B with a pattern of letters beside the types, the 1.2B without windows."""
    _, model = model_of(golden("exaone4", sliding_window_pattern="LLLG"))
    assert [(one.window, one.position) for one in kind_models(model).values()] == [(7, "rope"), (None, "none")]
    pattern = {"layer_types": None, "sliding_window_pattern": 2}
    assert layer_kinds(model_of(golden("exaone4", **pattern))[1]) == ("local", "global") * 2
    small = {"sliding_window": None, "sliding_window_pattern": None, "layer_types": ["full_attention"] * 4}
    assert (model_of(golden("exaone4", **small))[1].kinds, model.position) == ({}, "none")


def test_biases_of_seed_oss_have_two_keys():
    found = [
        model_of(golden("seed_oss", attention_bias=inward, attention_out_bias=outward))[1].attention_bias
        for inward, outward in ((False, False), (True, False), (True, True))
    ]
    assert found == [False, "qkv", True]


def test_neox_has_its_base_and_share_outside_the_mapping_as_published():
    older = {"rope_parameters": ..., "rotary_emb_base": 100, "rotary_pct": 0.5}
    assert differences(model_of(golden("gpt_neox", **older))[1], model_of(golden("gpt_neox"))[1]) == []


def test_longrope_of_phi_3_is_read_as_published_and_goes_both_ways():
    """The factor is the ratio of two lengths outside the mapping, and the type has three names."""
    family, model = model_of(golden("phi3_longrope"))
    scaling = {"type": "su", "short_factor": [1.25, 1.5, 2.0], "long_factor": [1, 3, 5]}
    older = {"rope_parameters": ..., "rope_scaling": scaling, "rope_theta": 100.0, "partial_rotary_factor": 0.75}
    assert differences(model_of(golden("phi3_longrope", **older))[1], model) == []
    assert (model.rope.factor, model.rope.original_length, model.rope.long_factors) == (8.0, 16, (1.0, 3.0, 5.0))
    written = config_of(family, model, {}, length=128)
    assert written["original_max_position_embeddings"] == 16
    assert written["rope_scaling"] == {
        "rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 16,
        "short_factor": [1.25, 1.5, 2.0], "long_factor": [1.0, 3.0, 5.0],
    }  # fmt: skip
    with refused("original_max_position_embeddings", "16", "32"):
        model_of(golden("phi3_longrope", rope_scaling=scaling | {"original_max_position_embeddings": 32}))


def test_keys_that_no_block_of_a_layer_reads_are_no_difference():
    """Heads of a layer without attention, and the width of one without a feed-forward."""
    _, model = model_of(golden("mamba2"))
    assert model.linear_attention is not None
    assert differences(replace(model, heads=2, head_dim=3, mlp=5, position="rope"), model) == []
    (different,) = differences(replace(model, linear_attention=replace(model.linear_attention, key_dim=5)), model)
    assert different.key == "linear_attention"
