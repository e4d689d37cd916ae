"""Rotary embeddings of `config.json`, which may state a thing twice: as transformers 5.24 reads them, or refused."""

import math
from typing import Any

import pytest

from jaxpar.config import UserError
from jaxpar.config.kinds import kind_models
from jaxpar.interop.config_json import config_of, differences, model_of
from jaxpar.interop.mapping.keys import HFConfig
from tests.interop.folders import golden
from tests.sentences import refused

DEFAULT: dict[str, Any] = {"rope_type": "default"}
LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LENGTH = {"original_max_position_embeddings": 32}
BY_TYPE = {"full_attention": DEFAULT, "sliding_attention": DEFAULT}

READ = [
    ("llama", {"rope_theta": 5e5, "rope_parameters": LLAMA3 | LENGTH},
     {"base": 5e5, "scaling": "llama3", "original_length": 32}),
    ("qwen3", {"rope_theta": 1e3}, {"base": 1e3, "scaling": "none"}),
    ("llama", {"rope_scaling": LLAMA3 | LENGTH, "rope_parameters": DEFAULT | {"rope_theta": 1e4}},
     {"base": 1e4, "scaling": "llama3", "factor": 4.0}),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": LINEAR, "rope_theta": 7e3},
     {"base": 7e3, "scaling": "linear", "factor": 2.0}),
    ("qwen3", {"rope_scaling": {}}, {"base": 1e3, "scaling": "none"}),
    ("qwen2", {"rope_parameters": None, "rope_scaling": YARN, "rope_theta": 1e3, "max_position_embeddings": 99},
     {"scaling": "yarn", "original_length": 99}),
    ("llama", {"rope_parameters": LLAMA3}, {"original_length": 128}),
    ("llama", {"rope_parameters": None, "rope_scaling": YARN | LENGTH | {"finetuned": True}},
     {"base": 1e4, "scaling": "yarn", "original_length": 32}),
    ("gpt_oss", {"rope_parameters": None},
     {"base": 150000.0, "scaling": "yarn", "factor": 32.0, "original_length": 4096, "truncate": False}),
    ("gpt_oss", {"rope_parameters": {}}, {"base": 150000.0, "scaling": "none"}),
    ("phi4_mini", {"rope_parameters": None, "rope_theta": 2e4, "partial_rotary_factor": 0.5},
     {"base": 2e4, "partial": 0.5}),
    ("phi3", {"partial_rotary_factor": 0.5, "rope_parameters": DEFAULT | {"rope_theta": 3e3}},
     {"base": 3e3, "partial": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "wanted"), READ)
def test_what_is_stated_twice_or_elsewhere_is_read_as_transformers_reads_it(name: str, keys: dict, wanted: dict):
    family, model = model_of(golden(name, **keys))
    for own in kind_models(model).values():
        assert {key: getattr(own.rope, key) for key in wanted} == wanted
    assert differences(model, model_of(HFConfig("config.json", config_of(family, model, {}, length=128)))[1]) == []


@pytest.mark.parametrize(
    ("keys", "full", "local"),
    [
        ({"rope_parameters": BY_TYPE, "rope_theta": 5e6, "rope_local_base_freq": 2e4}, (5e6, "none"), (2e4, "none")),
        ({"rope_parameters": BY_TYPE, "rope_scaling": LINEAR}, (1e6, "linear"), (1e4, "none")),
        ({"rope_parameters": None, "rope_scaling": LINEAR | {"rope_theta": 3e3}}, (3e3, "linear"), (1e4, "none")),
    ],
    ids=["bases", "scaling", "before transformers 5"],
)
def test_bases_of_types_of_layers_beside_rope_parameters(keys: dict[str, Any], full: tuple, local: tuple):
    kinds = kind_models(model_of(golden("gemma3", **keys))[1])
    read = {kind: (own.rope.base, own.rope.scaling) for kind, own in kinds.items()}
    assert read == {"global": full, "local": local}


NAN, INFINITE = math.nan, math.inf
REFUSED = [
    ("qwen3", {"rope_theta": 5e5}, ("rope_theta", "500000.0", "rope_parameters.rope_theta", "1000.0")),
    ("llama", {"rope_scaling": LINEAR}, ("rope_scaling", "rope_parameters", "differ")),
    ("llama", {"rope_scaling": DEFAULT}, ("rope_scaling", "rope_parameters", "differ")),
    ("qwen3", {"rope_scaling": YARN | LENGTH}, ("rope_parameters.rope_theta", "1000.0", "rope_scaling")),
    ("llama", {"rope_parameters": LINEAR | {"type": "yarn"}}, ("rope_type", "linear", "rope_parameters.type", "yarn")),
    ("phi4_mini", {"partial_rotary_factor": 0.5},
     ("partial_rotary_factor", "0.5", "rope_parameters.partial_rotary_factor", "0.75")),
    ("llama", {"partial_rotary_factor": 0.5}, ("partial_rotary_factor", "0.5")),
    ("phi3", {"rope_parameters": {}, "partial_rotary_factor": 1.5}, ("partial_rotary_factor", "1.5")),
    ("ministral3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
     ("rope_parameters.rope_type", "linear", "yarn")),
    ("phi3", {"rope_parameters": YARN | LENGTH}, ("original_max_position_embeddings", "4096", "32")),
    ("qwen3", {"rope_scaling": []}, ("rope_scaling", "[]", "a mapping")),
    ("qwen3", {"rope_scaling": False}, ("rope_scaling", "False", "a mapping")),
    ("qwen3", {"rope_parameters": []}, ("rope_parameters", "[]", "a mapping")),
    ("qwen3", {"rope_parameters": None, "rope_theta": NAN}, ("rope_theta", "nan")),
    ("llama", {"rope_parameters": LINEAR | {"factor": NAN}}, ("rope_parameters.factor", "nan")),
    ("phi3", {"rope_parameters": {}, "partial_rotary_factor": NAN}, ("partial_rotary_factor", "nan")),
    ("gemma2", {"query_pre_attn_scalar": NAN}, ("query_pre_attn_scalar", "nan")),
    ("deepseek_v2", {"routed_scaling_factor": INFINITE}, ("routed_scaling_factor", "inf")),
    ("gemma3", {"rope_parameters": LINEAR}, ("rope_parameters.", "full_attention")),
    ("gemma3", {"rope_local_base_freq": 7.0}, ("rope_local_base_freq", "7.0", "sliding_attention", "100.0")),
    ("gemma3", {"rope_scaling": LINEAR}, ("rope_scaling", "rope_parameters.full_attention", "differ")),
    ("llama", {"rope_parameters": LLAMA3, "max_position_embeddings": "x"}, ("max_position_embeddings", "x")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "parts"), REFUSED)
def test_two_that_differ_and_nonsense_are_refused(name: str, keys: dict[str, Any], parts: tuple[str, ...]):
    with refused("config.json", *parts):
        model_of(golden(name, **keys))


def test_a_model_whose_heads_rotate_in_part_goes_to_a_family_that_has_them():
    family, model = model_of(golden("phi4_mini"))
    written = config_of(family, model, {}, length=128)
    assert written["partial_rotary_factor"] == model.rope.partial == 0.75
    llama = model_of(golden("llama"))[0]
    with pytest.raises(UserError, match=r"model\.rope\.partial \(0\.75, not 1\.0\)"):
        config_of(llama, model, {}, length=128)


def test_a_scaling_of_local_layers_goes_both_ways():
    """Only `rope_parameters` can state such a scaling; a folder that has it must also be written."""
    scaled = {"rope_type": "linear", "factor": 2.5, "rope_theta": 100.0}
    keys = {"sliding_attention": scaled, "full_attention": {"rope_type": "default", "rope_theta": 1e6}}
    family, model = model_of(golden("gemma3", rope_parameters=keys))
    written = config_of(family, model, {}, length=128)
    assert written["rope_parameters"] == keys
    assert differences(model_of(HFConfig("config.json", written))[1], model) == []
