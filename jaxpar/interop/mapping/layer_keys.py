"""The lines of a family's table about what may differ from layer to layer: rotary embeddings and windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.mapping.keys import REQUIRED, Given

LOCAL, GLOBAL = "sliding_attention", "full_attention"
"""What `layer_types` names layers with a window, and without."""

SCALINGS = {
    "default": (),
    "linear": (("factor", "rope_factor"),),
    "llama3": (
        ("factor", "rope_factor"),
        ("original_max_position_embeddings", "rope_original_length"),
        ("low_freq_factor", "rope_low_frequency"),
        ("high_freq_factor", "rope_high_frequency"),
    ),
    "yarn": (("factor", "rope_factor"), ("original_max_position_embeddings", "rope_original_length")),
}
"""The types of rotary scaling that our model has, and their keys with ours."""
OPTIONAL = {
    "yarn": (
        ("beta_fast", "rope_beta_fast"),
        ("beta_slow", "rope_beta_slow"),
        ("truncate", "rope_truncate"),
        ("attention_factor", "rope_attention_factor"),
        ("mscale", "rope_mscale"),
        ("mscale_all_dim", "rope_mscale_all_dim"),
    ),
}
"""Keys that may be absent or null, with the same default in both."""
_NEUTRAL = ("rope_type", "type", "rope_theta", "original_max_position_embeddings")
"""Other keys beside a scaling's type, which have no effect on it."""

type Types = Callable[[Given, int], list[str]]
"""The type of each layer where `config.json` has no `layer_types`."""


def all_local(given: Given, layers: int) -> list[str]:
    """Every layer has the window."""
    return [LOCAL] * layers


def alternating(given: Given, layers: int) -> list[str]:
    """Every second layer has the window, the first one too."""
    return [GLOBAL if layer % 2 else LOCAL for layer in range(layers)]


def five_to_one(given: Given, layers: int) -> list[str]:
    """Every layer but each sixth, or each `sliding_window_pattern`-th."""
    period = given.get("sliding_window_pattern", given.get("_sliding_window_pattern", 6))
    if not isinstance(period, int) or period < 1:
        raise given.refusal("sliding_window_pattern", period, "a whole number, at least 1")
    return [LOCAL if (layer + 1) % period else GLOBAL for layer in range(layers)]


def from_max_window_layers(given: Given, layers: int) -> list[str]:
    """The layers from number `max_window_layers` on."""
    first = given.get("max_window_layers", layers)
    if not isinstance(first, int):
        raise given.refusal("max_window_layers", first, "a whole number")
    return [LOCAL if layer >= first else GLOBAL for layer in range(layers)]


def layer_types(given: Given, layers: int, default: Types) -> list[str]:
    """The type of each layer.

    Raises:
        UserError: `layer_types` has another type, or not one for each layer.
    """
    if given.get("layer_types") is None:
        return default(given, layers)
    types = given.get("layer_types")
    if not isinstance(types, list) or len(types) != layers:
        raise given.refusal("layer_types", types, f"a list of {layers}, one for each layer")
    for one in types:
        if one not in (LOCAL, GLOBAL):
            raise given.refusal("layer_types", one, f"{LOCAL} or {GLOBAL}")
    return types


@dataclass(frozen=True)
class Windows:
    """`sliding_window`, the window of the layers of one type."""

    default: Types
    switch: str | None = None
    """A key that turns the window on; without it, `sliding_window` alone does."""
    typed: bool = True
    """Whether `layer_types` is written."""
    beside: tuple[str, ...] = ()
    """Keys that `default` reads."""
    absent: int | None = None
    """The window where `config.json` has no `sliding_window`."""

    @property
    def keys(self) -> tuple[str, ...]:
        return ("sliding_window", "layer_types", *self.beside, *((self.switch,) if self.switch else ()))

    def read(self, given: Given, layers: int) -> list[dict[str, Any]]:
        window = given.typed("sliding_window", "window", self.absent)
        if window is None or (self.switch is not None and not given.get(self.switch, False)):
            return [{"window": None}] * layers
        types = layer_types(given, layers, self.default)
        return [{"window": window if one == LOCAL else None} for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, Any]:
        window = next((model.window for model in models if model.window is not None), None)
        written: dict[str, Any] = {"sliding_window": window}
        if self.switch is not None:
            written[self.switch] = window is not None
        if self.typed:
            written["layer_types"] = [LOCAL if model.window is not None else GLOBAL for model in models]
        return written


@dataclass(frozen=True)
class Rope:
    """Rotary embeddings that are the same in all layers.

    `rope_parameters` as transformers 5 writes them, or `rope_theta` and `rope_scaling`, which every release reads.
    """

    base: float = 10000.0
    """Where `config.json` has none."""
    keys: tuple[str, ...] = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")

    def read(self, given: Given, layers: int) -> list[dict[str, Any]]:
        _check_whole(given, "partial_rotary_factor", given.values)
        return [_rotary(given, self.base)] * layers

    def write(self, models: Sequence[ModelConfig]) -> dict[str, Any]:
        model = next((model for model in models if model.position == "rope"), models[0])
        return {"rope_theta": model.rope_base, "rope_scaling": _scaling(model)}


@dataclass(frozen=True)
class RopeByType:
    """Rotary embeddings of each type of layers (Gemma 3): those of local ones have a base of their own, and no scaling
    where `rope_parameters` does not give them one."""

    types: Types
    base: float = 1000000.0
    local_base: float = 10000.0
    keys: tuple[str, ...] = ("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq")

    def read(self, given: Given, layers: int) -> list[dict[str, Any]]:
        by_type = given.get("rope_parameters")
        if isinstance(by_type, dict) and {LOCAL, GLOBAL} & by_type.keys():
            bases = {LOCAL: self.local_base, GLOBAL: self.base}
            own = {
                name: _scaled(given, f"rope_parameters.{name}", by_type.get(name) or {}, base)
                for name, base in bases.items()
            }
        else:
            local = {"rope_base": given.typed("rope_local_base_freq", "rope_base", self.local_base)}
            own = {GLOBAL: _rotary(given, self.base), LOCAL: {**local, "rope_scaling": "none"}}
        return [own[one] for one in layer_types(given, layers, self.types)]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, Any]:
        of_type = {LOCAL: models[0], GLOBAL: models[0]} | {
            LOCAL if model.window is not None else GLOBAL: model for model in models
        }
        written = {"rope_theta": of_type[GLOBAL].rope_base, "rope_scaling": _scaling(of_type[GLOBAL])}
        return written | {"rope_local_base_freq": of_type[LOCAL].rope_base}


@dataclass(frozen=True)
class NoRope:
    """Layers without positions: `no_rope_layers` has 0 for them, or they are every `no_rope_layer_interval`-th."""

    keys: tuple[str, ...] = ("no_rope_layers", "no_rope_layer_interval")

    def read(self, given: Given, layers: int) -> list[dict[str, Any]]:
        interval, each = given.get("no_rope_layer_interval", 4), given.get("no_rope_layers")
        if not isinstance(interval, int) or interval < 1:
            raise given.refusal("no_rope_layer_interval", interval, "a whole number, at least 1")
        if each is None:
            each = [int((layer + 1) % interval != 0) for layer in range(layers)]
        if not isinstance(each, list) or len(each) < layers or any(one not in (0, 1) for one in each):
            raise given.refusal("no_rope_layers", each, f"a list of {layers} numbers, each 0 or 1")
        return [{"position": "rope" if rotates else "none"} for rotates in each[:layers]]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, Any]:
        return {"no_rope_layers": [int(model.position == "rope") for model in models]}


def _rotary(given: Given, base: float) -> dict[str, Any]:
    """Our keys, from either of the two spellings."""
    if given.get("rope_parameters") is not None:
        return _scaled(given, "rope_parameters", given.get("rope_parameters"), base)
    theta = given.typed("rope_theta", "rope_base", base)
    return _scaled(given, "rope_scaling", given.get("rope_scaling") or {}, theta)


def _scaled(given: Given, key: str, scaling: object, base: float) -> dict[str, Any]:
    """Our keys, from one mapping of theirs. Raises `UserError` for a type or a key that our model does not have."""
    if not isinstance(scaling, dict):
        raise given.refusal(key, scaling, "a mapping")
    inside = Given(given.file, {f"{key}.{name}": value for name, value in scaling.items()})
    _check_whole(given, f"{key}.partial_rotary_factor", inside.values)
    spelling = "type" if "type" in scaling and "rope_type" not in scaling else "rope_type"
    kind = scaling.get(spelling, "default")
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise given.refusal(f"{key}.{spelling}", kind, f"one of {', '.join(SCALINGS)}")
    optional = dict(OPTIONAL.get(kind, ()))
    known = {*_NEUTRAL, "partial_rotary_factor", *(theirs for theirs, _ in SCALINGS[kind]), *optional}
    for name in scaling.keys() - known:
        raise UserError(f"{given.file}: {key}.{name} is not supported with {spelling} {kind}")
    ours = {"rope_base": inside.typed(f"{key}.rope_theta", "rope_base", base)}
    ours["rope_scaling"] = "none" if kind == "default" else kind
    ours |= {mine: inside.typed(f"{key}.{theirs}", mine, REQUIRED) for theirs, mine in SCALINGS[kind]}
    given_ones = {theirs: mine for theirs, mine in optional.items() if scaling.get(theirs) is not None}
    return ours | {mine: inside.typed(f"{key}.{theirs}", mine) for theirs, mine in given_ones.items()}


def _scaling(model: ModelConfig) -> dict[str, Any] | None:
    """`rope_scaling` of our keys."""
    if model.rope_scaling == "none":
        return None
    pairs = (*SCALINGS[model.rope_scaling], *OPTIONAL.get(model.rope_scaling, ()))
    own = {theirs: value for theirs, ours in pairs if (value := getattr(model, ours)) is not None}
    return {"rope_type": model.rope_scaling, **own}


def _check_whole(given: Given, key: str, values: Mapping[str, Any]) -> None:
    """Refuse rotary embeddings of a part of each head."""
    if values.get(key) not in (None, 1, 1.0):
        raise given.refusal(key, values[key], "1: all of each head rotates")
