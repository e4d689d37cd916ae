"""Kinds of layers: the kind of each layer of a model, and the `ModelConfig` that layers of a kind use.

A kind overrides a few keys of `ModelConfig`. Functions that describe a layer take a `ModelConfig` and are called once
for each kind, with the model of that kind; a model that declares no kinds has one, `ALL`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.reading.aliases import key_of_other_system
from jaxpar.config.reading.sections import NESTED, with_values, written_value
from jaxpar.config.reading.typed import field_types
from jaxpar.config.schema.model import ModelConfig, Pattern
from jaxpar.config.spelling import cut, did_you_mean, quoted

KIND_KEYS = (
    "norm_placement", "residual", "position", "rope", "qk_norm", "qkv_clip", "attention_bias", "attention_scale",
    "attention_softcap", "attention_gate", "mixer", "latent_attention", "linear_attention", "window", "chunk",
    "attention_temperature", "activation", "activation_sparsity", "mlp", "mlp_bias", "experts", "kv_heads", "head_dim",
    "keys_of", "keys_as_values", "value_norm",
)  # fmt: skip
"""Keys of `model` that a kind may set."""

ALL = "all"
"""The kind of all layers of a model that declares none."""


def kind_clause(kind: str) -> str:
    """A clause that names a kind, for the user: nothing where the model declares none."""
    return "" if kind == ALL else f" of kind {kind}"


def layer_kinds(model: ModelConfig) -> tuple[str, ...]:
    """The kind of each layer, in the order of the model."""
    pattern = model.pattern
    if pattern is None:
        return (ALL,) * model.layers
    units = (model.layers - len(pattern.prefix) - len(pattern.suffix)) // max(1, len(pattern.unit))
    return pattern.prefix + pattern.unit * units + pattern.suffix


@lru_cache(maxsize=1000)
def kind_model(model: ModelConfig, kind: str) -> ModelConfig:
    """`model` with the keys of `kind`: all its layers are of that kind."""
    if model.pattern is None:
        return model
    overrides = {key: _checked(f"model.kinds.{kind}.{key}", key, value) for key, value in model.kinds[kind].items()}
    return with_values(replace(model, kinds={}, pattern=None), overrides)


def kind_models(model: ModelConfig) -> dict[str, ModelConfig]:
    """The model of each kind that has layers, in the order in which they first come."""
    return {kind: kind_model(model, kind) for kind in kind_counts(model)}


def kind_counts(model: ModelConfig) -> dict[str, int]:
    """The number of layers of each kind, in the order in which they first come."""
    return dict(Counter(layer_kinds(model)))


def key_of(kind: str, key: str) -> str:
    """The name of a key of `model` in the section that sets it for the layers of a kind."""
    return f"model.{key}" if kind == ALL else f"model.kinds.{kind}.{key}"


def check_kinds(model: ModelConfig) -> None:
    """Refuse kinds and patterns that do not make `model.layers` layers.

    Raises:
        UserError: a kind sets a key that does not exist or belongs to the whole model, or sets it to a value of the
            wrong type; a pattern names a kind that is not declared, or its parts do not add up; a kind has no layer.
    """
    for kind, overrides in model.kinds.items():
        _check_overrides(kind, overrides)
    pattern = model.pattern
    if pattern is None:
        if model.kinds:
            raise UserError(f"model.pattern: null, and model.kinds declares {', '.join(model.kinds)}; {_EXPECTED}")
        return
    if not pattern.unit:
        raise UserError(f"model.pattern.unit: no kinds in it; {_EXPECTED}")
    for part in ("prefix", "unit", "suffix"):
        for kind in getattr(pattern, part):
            if kind not in model.kinds:
                near = did_you_mean(kind, model.kinds) or f"; there are {', '.join(model.kinds) or 'none'}"
                raise UserError(f"model.pattern.{part}: {quoted(kind, 80)} is not declared in model.kinds{near}")
    _check_sum(pattern, model.layers)
    idle = [kind for kind in model.kinds if kind not in layer_kinds(model)]
    if idle:
        raise UserError(f"model.kinds.{idle[0]}: no layer is of this kind; expected it in model.pattern")


_EXPECTED = "expected {unit: [...]}, names of model.kinds"


def _check_overrides(kind: str, overrides: Mapping[str, Any]) -> None:
    where = f"model.kinds.{cut(kind, 80)}"
    if not kind.isidentifier():
        raise UserError(f"{where}: expected a name of letters, digits and _, got {quoted(kind, 80)}")
    if kind == ALL:
        raise UserError(f"{where}: layers of a model without kinds have this name; expected another")
    for key, value in overrides.items():
        if key not in KIND_KEYS:
            why = "is of the whole model" if key in _types() else "is not a key of model"
            raise UserError(f"{where}.{cut(key, 80)}: {key} {why}{_suggestion(key)}")
        _checked(f"{where}.{key}", key, value)


def _check_sum(pattern: Pattern, layers: int) -> None:
    once, unit = len(pattern.prefix) + len(pattern.suffix), len(pattern.unit)
    units, rest = divmod(layers - once, unit)
    if units < 1 or rest:
        below = once + unit * max(1, units)
        near = f"{below} or {below + unit}" if units >= 1 else str(below)
        raise UserError(
            f"model.pattern: a prefix of {len(pattern.prefix)}, units of {unit} and a suffix of {len(pattern.suffix)} "
            f"make no {layers} layers (model.layers); expected for example {near}"
        )


def _types() -> dict[str, object]:
    return field_types(ModelConfig)


def _checked(path: str, key: str, value: object) -> Any:
    return written_value(path, value, _types()[key], f"model.{key}" in NESTED)


def _suggestion(key: str) -> str:
    """A clause with the key that a wrong name probably means."""
    section, _, known = (key_of_other_system(key) or "").partition(".")
    if section == "model" and known.partition(".")[0] in KIND_KEYS:
        return f"; did you mean {known}?"
    return did_you_mean(key, KIND_KEYS) or f"; a kind may set {', '.join(KIND_KEYS)}"
