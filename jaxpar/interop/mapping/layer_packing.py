"""Kinds and pattern of a model from what each of its layers has, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass

import numpy as np

from jaxpar.config.kinds import KIND_KEYS, kind_models, layer_kinds
from jaxpar.config.schema.model import ModelConfig, Pattern


def packed(layers: Sequence[dict[str, object]]) -> dict[str, object]:
    """Keys of the model section for layers that have these keys: those of the kind that most resembles the whole model,
    and, if there are several kinds, `kinds` with what differs, and the `pattern`. `keys_of` is the index of a layer,
    of which no other of its kind is behind it and before those that share its keys."""
    distinct: list[dict[str, object]] = []
    for keys in layers:
        if keys not in distinct:
            distinct.append(keys)
    if len(distinct) <= 1:
        return distinct[0] if distinct else {}
    names = _names(distinct)
    # A kind may do without experts, and cannot state options of their router.
    routed = [index for index, keys in enumerate(distinct) if keys.get("experts") is not None]
    candidates = routed or [index for index, keys in enumerate(distinct) if keys.get("keys_of") is None]
    base = distinct[next((index for index in candidates if names[index] == "global"), candidates[0])]
    kinds = {name: _differing(keys, base) for name, keys in zip(names, distinct, strict=True)}
    of_layers = [names[distinct.index(keys)] for keys in layers]
    for keys in kinds.values():
        if isinstance(source := keys.get("keys_of"), int):
            keys["keys_of"] = of_layers[source]
    return {**base, "kinds": kinds, "pattern": pattern_of(of_layers)}


def _differing(keys: Mapping[str, object], base: Mapping[str, object]) -> dict[str, object]:
    """The keys that `base` has not, or with another value; of mappings that both have, those inside."""
    differing = {key: value for key, value in keys.items() if key not in base or value != base[key]}
    for key, value in differing.items():
        if isinstance(value, dict) and isinstance(before := base.get(key), dict):
            differing[key] = _differing(value, before)
    return {key: _changed_members(value) for key, value in differing.items()}


def _changed_members(value: object) -> object:
    """A value as a kind has it: of a mapping's dataclass, the members that are not at their defaults."""
    if not is_dataclass(value):
        return value
    return {one.name: setting for one in fields(value) if (setting := getattr(value, one.name)) != one.default}


def layer_models(model: ModelConfig) -> list[ModelConfig]:
    """The model of each layer: all its layers are like that one."""
    models = kind_models(model)
    return [models[kind] for kind in layer_kinds(model)]


def key_sources(model: ModelConfig) -> list[int | None]:
    """Index, for each layer, of the layer whose keys and values it shares; None if it computes its own."""
    kinds, sources = layer_kinds(model), list[int | None]()
    for layer, one in enumerate(layer_models(model)):
        source = None if one.keys_of is None else layer - 1 - kinds[:layer][::-1].index(one.keys_of)
        sources.append(source)
    return sources


def pattern_of(kinds: Sequence[str]) -> Pattern:
    """The shortest pattern of a sequence of kinds: a prefix, a unit that repeats, and a suffix.

    The time grows with the square of its length: a `config.json` may have thousands of layers.
    """
    total, best, shortest = len(kinds), len(kinds) + 1, Pattern(tuple(kinds))
    numbers = np.unique(np.array(kinds), return_inverse=True)[1]
    for unit in range(1, total + 1):
        if unit >= best:
            break
        # Stretches in which each layer is like the one `unit` layers later.
        lasts = np.append(np.flatnonzero(numbers[unit:] != numbers[: total - unit]), total - unit)
        firsts = np.append(0, lasts[:-1] + 1)
        repeats = (lasts - firsts) // unit
        most = int(repeats.argmax())
        prefix, again = int(firsts[most]), int(repeats[most])
        if total - again * unit < best:
            best, suffix = total - again * unit, prefix + (again + 1) * unit
            shortest = Pattern(tuple(kinds[prefix : prefix + unit]), tuple(kinds[:prefix]), tuple(kinds[suffix:]))
    return shortest


_WORDS = (
    ("window", None, ("local", "global")),
    ("position", "none", ("rotary", "plain")),
    ("experts", None, ("routed", "dense")),
    ("mixer", "attention", ("state", "full")),
)
"""A key, its value in one of two kinds, and their names, that one's last."""


def _names(distinct: Sequence[dict[str, object]]) -> list[str]:
    """A name for each kind: `local` and `global` where one of two has a window, `rotary` and `plain` where one of two
    has no positions, `routed` and `dense` where one of two has no experts."""
    assert all(key in KIND_KEYS for keys in distinct for key in keys), "keys that a kind may set"
    if len(distinct) == 2:
        for key, without, words in _WORDS:
            values = [keys.get(key) for keys in distinct]
            if values[0] != values[1] and without in values:
                return [words[value == without] for value in values]
    return [f"kind{index}" for index in range(1, len(distinct) + 1)]
