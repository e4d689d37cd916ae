"""Phi-3.5-MoE: LayerNorm, biases of the logits, LongRoPE whose magnitude is a key, and SparseMixer's router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    GROUPED_SIZES,
    HEAD,
    HEAD_BIAS,
    NORM,
    NORM_BIASES,
    NORMS,
    SILU,
    TIED,
)
from jaxpar.interop.families.mixtral import EXPERTS
from jaxpar.interop.families.phi import LongRope
from jaxpar.interop.mapping.expert_keys import UNUSED, RoutedExperts
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import REQUIRED, HFConfig, Same
from jaxpar.interop.mapping.layer_keys import Windows, all_local
from jaxpar.interop.mapping.rope_keys import LENGTH
from jaxpar.layers.experts.routers import options_of
from jaxpar.layers.rope import rotary_magnitude

_SHORT, _LONG = "short_mscale", "long_mscale"
_JITTER, _CHOSEN = "router_jitter_noise", "num_experts_per_tok"
SPARSE_MIXER = "sparse_mixer"


@dataclass(frozen=True)
class ScaledLongRope(LongRope):
    """LongRoPE with the magnitude of cosines and sines for short rows and for long ones."""

    partial: float | None = None

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        written = super().write(models)
        scaling = written["rope_scaling"]
        if not isinstance(scaling, dict):
            return written
        rope = {key: value for key, value in scaling.items() if key != "attention_factor"}
        return written | {"rope_scaling": rope | dict.fromkeys((_SHORT, _LONG), rotary_magnitude(models[0]))}

    def _spelled_out(self, hf_config: HFConfig, key: str, mapping: Mapping[str, object]) -> dict[str, object]:
        inside = HFConfig(hf_config.file, {f"{key}.{name}": value for name, value in mapping.items()})
        short, long = (inside.positive(f"{key}.{name}", REQUIRED) for name in (_SHORT, _LONG))
        if short != long:
            raise hf_config.refusal(f"{key}.{_LONG}", long, f"{_SHORT}, {short}")
        left = {name: value for name, value in mapping.items() if name not in (_SHORT, _LONG, "attention_factor")}
        if mapping.get(LENGTH) is not None:  # files need not state it a second time
            hf_config = HFConfig(hf_config.file, {LENGTH: mapping[LENGTH], **hf_config.values})
        return super()._spelled_out(hf_config, key, left) | {"attention_factor": float(short)}


@dataclass(frozen=True)
class SparseMixer(RoutedExperts):
    """Experts in every layer; a token uses two of them."""

    router: str = SPARSE_MIXER

    @property
    def keys(self) -> tuple[str, ...]:
        return (*super().keys, _JITTER)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        if (per_token := hf_config.get(_CHOSEN, 2)) != 2:
            raise hf_config.refusal(_CHOSEN, per_token, "2")
        jitter = hf_config.get(_JITTER, 0.01)
        if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
            raise hf_config.refusal(_JITTER, jitter, "a number from 0 to 1")
        read = super().read(hf_config, layers)
        options = {} if jitter == 0.01 else {"jitter": float(jitter)}
        return [{"experts": replace(_experts(one["experts"]), router_options=options)} for one in read]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        experts = next((model.experts for model in models if model.experts is not None), ExpertsConfig(0))
        jitter = options_of(experts).jitter if experts.router == SPARSE_MIXER else 0.01
        return super().write(models) | {_JITTER: jitter}


def _experts(experts: object) -> ExpertsConfig:
    assert isinstance(experts, ExpertsConfig), "every layer has them"
    return experts


PHIMOE = Family(
    name="phimoe",
    model_type="phimoe",
    architecture="PhimoeForCausalLM",
    presets="Phi-3.5-MoE and Phi-mini-MoE",
    tensors=(EMBEDDING, *ATTENTION, *EXPERTS, *NORMS, NORM, *NORM_BIASES, HEAD, HEAD_BIAS),
    model={"norm": "layernorm", "activation": "swiglu"},
    entries=(
        *GROUPED_SIZES,
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        ATTENTION_BIAS,
        Same("lm_head_bias", "head_bias", default=False),
        TIED,
    ),
    layer_entries=(
        ScaledLongRope(base=1000000.0),
        Windows(all_local, typed=False),
        SparseMixer(("num_local_experts", "num_experts")),
    ),
    unused=(*UNUSED, "input_jitter_noise"),
)
