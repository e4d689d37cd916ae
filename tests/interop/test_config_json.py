"""`config.json` to a model section and back; what our model does not have is refused by its key."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from jaxpar.config import UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.mappings.attention_temperature import AttentionTemperature
from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.config.presets import PRESETS
from jaxpar.config.schema.model import ModelConfig
from jaxpar.interop.config_json import config_of, differences, family_for, model_of
from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.sources.source import check_fits
from tests.goldens.loading import NAMES
from tests.interop.folders import golden
from tests.sentences import refused


@pytest.mark.matrix(quick=("llama4", "mixtral"), ci=4)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_a_family_cannot_express_is_refused(name: str):
    _, model = model_of(golden(name))
    for family in FAMILIES.values():
        with suppress(UserError):
            config_of(family, model, {}, length=128)


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


@pytest.mark.parametrize("model_type", ["olmo_hybrid", "recurrent_gemma", "qwen2_vl", "jamba", "Qwen_2", 3])
def test_another_architecture_with_a_name_alike_is_not_suggested(model_type: object):
    with refused("model_type", str(model_type), "expected one of those that python -m jaxpar.models lists") as caught:
        model_of(golden("gpt2" if model_type == "Qwen_2" else "llama", model_type=model_type))
    assert "did you mean" not in str(caught.value)


def test_what_no_family_can_hold_is_refused():
    with refused("model", "no family"):
        family_for(replace(PRESETS["llama3-1b"], activation="gelu"))
    with refused("model", "no family"):
        family_for(replace(PRESETS["llama3-1b"], window=128, attention_bias=True))


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


def test_keys_that_no_block_of_a_layer_reads_are_no_difference():
    _, model = model_of(golden("mamba2"))
    assert model.linear_attention is not None
    assert differences(replace(model, heads=2, head_dim=3, mlp=5, position="rope"), model) == []
    (different,) = differences(replace(model, linear_attention=replace(model.linear_attention, key_dim=5)), model)
    assert different.key == "linear_attention"
