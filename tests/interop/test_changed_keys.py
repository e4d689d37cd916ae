"""A key of a golden's `config.json` that has another value gives another model, or is refused."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from jaxpar.config.errors import UserError
from jaxpar.interop.config_json import UNUSED, differences, model_of
from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.mapping.keys import HFConfig
from tests.goldens.loading import NAMES
from tests.interop.folders import golden

_LISTED = "the list of the layers' types is there"
WITHOUT_EFFECT = {
    "deepseek_v2": {"intermediate_size": "no layer is dense"},
    "dots1": {"max_window_layers": _LISTED, "topk_group": "there is one group"},
    "ernie4_5_moe": {"moe_layer_end_index": "behind the last layer"},
    "exaone4": {"sliding_window_pattern": _LISTED},
    "gemma3": {"_sliding_window_pattern": _LISTED},
    "gemma4_dense": {
        "use_double_wide_mlp": "no layer shares keys",
        "vocab_size_per_layer_input": "layers have no inputs",
    },
    "gemma4_moe": {"vocab_size_per_layer_input": "layers have no inputs"},
    "glm4_moe": {"topk_group": "there is one group"},
    "hunyuan_v1_dense": {"rope_parameters.factor": "alpha is read in its place"},
    "kimi_k2": {"topk_group": "there is one group"},
    "kimi_linear": {"head_dim": "the widths of latent attention are read in its place"},
    "llama4": {"interleave_moe_layer_step": _LISTED, "no_rope_layer_interval": _LISTED},
    "phi3": {"original_max_position_embeddings": "for longrope alone"},
    "phi4_mini": {"original_max_position_embeddings": "for longrope alone"},
    "qwen2": {"max_window_layers": _LISTED, "use_sliding_window": _LISTED},
    "qwen2_moe": {"intermediate_size": "no layer is dense", "max_window_layers": _LISTED},
    "qwen3": {"max_window_layers": _LISTED, "use_sliding_window": _LISTED},
    "qwen3_moe": {"use_sliding_window": _LISTED},
    "smollm3": {"no_rope_layer_interval": _LISTED},
    "solar_open": {"topk_group": "there is one group"},
}
"""Keys of a golden that have no effect in its configuration, and why."""


def changes(value: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Paths of numbers and flags in a mapping, each with another value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (((key, *path), other) for path, other in changes(inner))
    elif isinstance(value, bool):
        yield (), not value
    elif isinstance(value, int | float):
        yield (), 2 * value + 1


def with_value(values: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    """The mapping with another value at a path."""
    key, *inner = path
    return {**values, key: with_value(values[key], tuple(inner), value) if inner else value}


def is_noticed(name: str, path: tuple[str, ...], value: object) -> bool:
    """Whether the model of the golden differs where its configuration has another value, or is refused."""
    keys = golden(name)
    try:
        return (
            differences(model_of(HFConfig(keys.file, with_value(keys.values, path, value)))[1], model_of(keys)[1]) != []
        )
    except UserError:
        return True


@pytest.mark.parametrize("name", NAMES)
def test_a_key_with_another_value_gives_another_model_or_a_refusal(name: str):
    keys = golden(name)
    (family,) = (one for one in FAMILIES.values() if one.model_type == keys.values["model_type"])
    unused = {*UNUSED, *family.unused}
    silent = [
        ".".join(path)
        for path, value in changes(keys.values)
        if path[0] not in unused and not is_noticed(name, path, value)
    ]
    assert silent == [*WITHOUT_EFFECT.get(name, {})]
