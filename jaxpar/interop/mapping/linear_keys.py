"""The lines of a family's table about mixers with a state: their tensors, heads and widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.mapping.family import Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.mapping.layer_keys import GLOBAL, LINEAR, layer_types
from jaxpar.layers.declared import mixer_classes
from jaxpar.layers.linear_attention.mixer import LinearAttention, sizes_of


def mamba2_tensors(mixer: str) -> tuple[Tensor, ...]:
    """The tensors of Mamba-2, in a module of each layer."""
    weights = lambda *names: " ".join(f"layers.mixer.{name}" for name in names)
    return (
        Tensor(f"{mixer}.A_log", weights("decay_rate"), Form.VECTOR),
        Tensor(f"{mixer}.D", weights("skip"), Form.VECTOR),
        Tensor(f"{mixer}.conv1d.bias", weights("value_taps_bias", "key_taps_bias", "query_taps_bias"), Form.VECTOR),
        Tensor(f"{mixer}.conv1d.weight", weights("value_taps", "key_taps", "query_taps"), Form.TAPS),
        Tensor(f"{mixer}.dt_bias", weights("step_bias"), Form.VECTOR),
        Tensor(f"{mixer}.in_proj.weight", weights("gate", "value", "key", "query", "step")),
        Tensor(f"{mixer}.norm.weight", weights("output_norm"), Form.VECTOR),
        Tensor(f"{mixer}.out_proj.weight", weights("output")),
    )


def with_state(model: ModelConfig) -> bool:
    """Whether layers of a model whose layers are all alike have a mixer with a state."""
    return any(issubclass(mixer, LinearAttention) for mixer in mixer_classes(model))


@dataclass(frozen=True)
class LinearSizes:
    """Heads and widths of mixers with a state, the same in all layers that have one."""

    names: Mapping[str, str]
    """Keys of `config.json` by those of `model.linear_attention`."""
    defaults: Mapping[str, float]
    """Values where `config.json` lacks the key."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.names.values())

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        sizes: dict[str, Any] = {}
        for ours, theirs in self.names.items():
            read = hf_config.integer if ours != "least_step" else hf_config.positive
            sizes[ours] = 0 if hf_config.get(theirs) == 0 else read(theirs, self.defaults[ours])
        return [{"linear_attention": LinearAttentionConfig(**sizes)}] * layers

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        sizes = sizes_of(next((model for model in models if with_state(model)), models[0]))
        return {theirs: getattr(sizes, ours) for ours, theirs in self.names.items()}


@dataclass(frozen=True)
class StateLayers:
    """`layer_types` of a family in which all layers but some have a mixer with a state."""

    mixer: str
    """Ours, of layers that are named `linear_attention`."""
    interval: str = "full_attention_interval"
    """The key for the interval between layers with attention, if there are no `layer_types`."""
    every: int = 4
    """The default of `interval`."""

    @property
    def keys(self) -> tuple[str, ...]:
        return ("layer_types", self.interval)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        every = hf_config.integer(self.interval, self.every)
        default = lambda hf_config, layers: [GLOBAL if (layer + 1) % every == 0 else LINEAR for layer in range(layers)]
        types = layer_types(hf_config, layers, default, (LINEAR, GLOBAL))
        return [{"mixer": self.mixer if one == LINEAR else "attention"} for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        return {"layer_types": [LINEAR if model.mixer == self.mixer else GLOBAL for model in models]}


@dataclass(frozen=True)
class NoStepLimit:
    """The limits of Mamba-2's steps, which our layer does not have: 0 and infinity do not limit a softplus."""

    keys: tuple[str, ...] = ("time_step_limit",)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        (key,) = self.keys
        limit, infinite = hf_config.get(key), (float("inf"), {"__float__": "Infinity"})
        if limit is not None and limit not in [[0, one] for one in infinite]:
            raise hf_config.refusal(key, limit, "0 and infinity")
        return {}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {}
