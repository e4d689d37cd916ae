"""The lines of a family's table about what may differ from layer to layer: windows, and layers without positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import join_or
from jaxpar.interop.mapping.keys import HFConfig

LOCAL, GLOBAL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
"""Names in `layer_types` of layers with a window, without, and with a state in place of attention."""

type Types = Callable[[HFConfig, int], list[str]]
"""The type of each layer where `config.json` has no `layer_types`."""


def all_local(hf_config: HFConfig, layers: int) -> list[str]:
    """Types of layers that all have the window."""
    return [LOCAL] * layers


def all_global(hf_config: HFConfig, layers: int) -> list[str]:
    """Types of layers without a window."""
    return [GLOBAL] * layers


def alternating(hf_config: HFConfig, layers: int) -> list[str]:
    """Types of layers that alternate, beginning with the window."""
    return [GLOBAL if layer % 2 else LOCAL for layer in range(layers)]


def three_to_one(hf_config: HFConfig, layers: int) -> list[str]:
    """Types of layers with the window, except every fourth."""
    return [LOCAL if (layer + 1) % 4 else GLOBAL for layer in range(layers)]


def five_to_one(hf_config: HFConfig, layers: int) -> list[str]:
    """Types of layers with the window, except every sixth or `sliding_window_pattern`-th."""
    period = hf_config.integer("sliding_window_pattern", 6)
    if (saved := hf_config.get("_sliding_window_pattern")) not in (None, period):
        # transformers writes it, and reads it no more.
        raise hf_config.refusal(
            "_sliding_window_pattern", saved, f"{period}, as sliding_window_pattern, or layer_types"
        )
    return [LOCAL if (layer + 1) % period else GLOBAL for layer in range(layers)]


def from_max_window_layers(hf_config: HFConfig, layers: int) -> list[str]:
    """The layers from number `max_window_layers` on."""
    first = hf_config.get("max_window_layers", 28)
    if type(first) is not int:
        raise hf_config.refusal("max_window_layers", first, "a whole number")
    return [LOCAL if layer >= first else GLOBAL for layer in range(layers)]


def layer_types(
    hf_config: HFConfig, layers: int, default: Types, known: tuple[str, ...] = (LOCAL, GLOBAL)
) -> list[str]:
    """The type of each layer.

    Raises:
        UserError: `layer_types` has another type, or not one for each layer.
    """
    if hf_config.get("layer_types") is None:
        return default(hf_config, layers)
    types = hf_config.get("layer_types")
    if not isinstance(types, list) or len(types) != layers:
        raise hf_config.refusal("layer_types", types, f"a list of {layers}, one for each layer")
    for one in types:
        if one not in known:
            raise hf_config.refusal("layer_types", one, join_or(known))
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
    always: bool = False
    """Whether it is a number in any case: transformers makes the window's mask also for a model without such layers."""

    @property
    def keys(self) -> tuple[str, ...]:
        return ("sliding_window", "layer_types", *self.beside, *((self.switch,) if self.switch else ()))

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        window = None
        if self.always:
            hf_config.integer("sliding_window", self.absent)
        if self.switch is None or hf_config.flag(self.switch, default=False):
            window = hf_config.typed("sliding_window", "window", self.absent)
        default = all_global if window is None else self.default
        types = layer_types(hf_config, layers, default)
        if (window is None or not self.typed) and types != default(hf_config, layers):
            raise hf_config.refusal("layer_types", types, f"{default(hf_config, layers)[0]} alone, by other keys")
        return [{"window": window if one == LOCAL else None} for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        window = next((model.window for model in models if model.window is not None), None)
        written: dict[str, object] = {"sliding_window": self.absent if self.always and window is None else window}
        if self.switch is not None:
            written[self.switch] = window is not None
        if self.typed:
            written["layer_types"] = [LOCAL if model.window is not None else GLOBAL for model in models]
        return written


@dataclass(frozen=True)
class NoWindows:
    """`layer_types` of a family whose layers have no window."""

    keys: tuple[str, ...] = ("layer_types",)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        types = layer_types(hf_config, layers, all_global)
        if LOCAL in types:
            raise hf_config.refusal("layer_types", types, f"{GLOBAL} alone")
        return [{}] * layers

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        return {}


@dataclass(frozen=True)
class NoRope:
    """Layers without positions: `no_rope_layers` has 0 for them, or they are every `no_rope_layer_interval`-th."""

    keys: tuple[str, ...] = ("no_rope_layers", "no_rope_layer_interval")

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        interval, each = hf_config.integer("no_rope_layer_interval", 4), hf_config.get("no_rope_layers")
        if each is None:
            each = [int((layer + 1) % interval != 0) for layer in range(layers)]
        if not isinstance(each, list) or len(each) < layers or any(one not in (0, 1) for one in each):
            raise hf_config.refusal("no_rope_layers", each, f"a list of {layers} numbers, each 0 or 1")
        return [{"position": "rope" if rotates else "none"} for rotates in each[:layers]]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        return {"no_rope_layers": [int(model.position == "rope") for model in models]}


@dataclass(frozen=True)
class RopeOfWindows:
    """Positions of a family whose layers without the window have none, unless `sliding_window` is null."""

    default: Types
    absent: int | None = None
    """The window where `config.json` has no `sliding_window`."""
    keys: tuple[str, ...] = ()

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        if hf_config.get("sliding_window", self.absent) is None:
            return [{"position": "rope"}] * layers
        types = layer_types(hf_config, layers, self.default)
        return [{"position": "rope" if one == LOCAL else "none"} for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        return {}
