"""Kinds and pattern of a model from what each of its layers has, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxpar.config.kinds import OWN, kind_models, layer_kinds
from jaxpar.config.schema.model import ModelConfig, Pattern


def packed(layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Keys of the model section for layers that have these keys: those of the kind that most resembles the whole model,
    and, if there are several kinds, `kinds` with what differs, and the `pattern`."""
    distinct = [own for place, own in enumerate(layers) if own not in layers[:place]]
    if len(distinct) <= 1:
        return distinct[0] if distinct else {}
    names = _names(distinct)
    whole = next((place for place, own in enumerate(distinct) if own.get("experts") is not None), 0)
    base = distinct[names.index("global") if "global" in names else whole]
    kinds = {
        name: {key: value for key, value in own.items() if key not in base or value != base[key]}
        for name, own in zip(names, distinct, strict=True)
    }
    of_layers = [names[distinct.index(own)] for own in layers]
    return {**base, "kinds": kinds, "pattern": pattern_of(of_layers)}


def layer_models(model: ModelConfig) -> list[ModelConfig]:
    """The model of each layer: all its layers are like that one."""
    own = kind_models(model)
    return [own[kind] for kind in layer_kinds(model)]


def pattern_of(kinds: Sequence[str]) -> Pattern:
    """The shortest pattern of a sequence of kinds: a prefix, a unit that repeats, and a suffix."""
    total, best, found = len(kinds), len(kinds) + 1, Pattern(tuple(kinds))
    for unit in range(1, total + 1):
        for prefix in range(total - unit + 1):
            if prefix + unit >= best:
                break
            repeated = list(kinds[prefix : prefix + unit])
            units = 1
            while list(kinds[prefix + units * unit : prefix + (units + 1) * unit]) == repeated:
                units += 1
            length = total - (units - 1) * unit
            if length < best:
                suffix = kinds[prefix + units * unit :]
                best, found = length, Pattern(tuple(repeated), tuple(kinds[:prefix]), tuple(suffix))
    return found


_WORDS = (
    ("window", None, ("local", "global")),
    ("position", "none", ("rotary", "plain")),
    ("experts", None, ("routed", "dense")),
)
"""A key, its value in one of two kinds, and their names, that one's last."""


def _names(distinct: Sequence[dict[str, Any]]) -> list[str]:
    """A name for each kind: `local` and `global` where one of two has a window, `rotary` and `plain` where one of two
    has no positions, `routed` and `dense` where one of two has no experts."""
    assert all(key in OWN for own in distinct for key in own), "keys that a kind may set"
    if len(distinct) == 2:
        for key, without, words in _WORDS:
            values = [own.get(key) for own in distinct]
            if values[0] != values[1] and without in values:
                return [words[value == without] for value in values]
    return [f"kind{number}" for number in range(1, len(distinct) + 1)]
