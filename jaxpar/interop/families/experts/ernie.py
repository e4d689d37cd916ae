"""ERNIE 4.5, dense and with experts of a softmax that biases balance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.deepseek import SHARED
from jaxpar.interop.families.llama import (
    EMBEDDING,
    FEED_FORWARD,
    GROUPED_SIZES,
    HEAD,
    HEAD_DIM,
    NORM,
    NORMS,
    PAIRED_ATTENTION,
    SILU,
)
from jaxpar.interop.mapping.expert_keys import EXPERTS, UNUSED
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.rope_keys import Rope


@dataclass(frozen=True)
class Biases:
    """One key for biases of all projections."""

    keys: tuple[str, ...] = ("use_bias",)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        return dict.fromkeys(("attention_bias", "mlp_bias"), hf_config.flag(self.keys[0], default=False))

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {self.keys[0]: model.mlp_bias}


_MODEL = {"norm": "rmsnorm", "activation": "swiglu"}
_ENTRIES = (
    *GROUPED_SIZES,
    SILU,
    Same("rms_norm_eps", "norm_epsilon", default=1e-5),
    Same("tie_word_embeddings", "tied", default=True),
)

ERNIE4_5 = Family(
    name="ernie4_5",
    model_type="ernie4_5",
    architecture="Ernie4_5ForCausalLM",
    presets="ERNIE 4.5 0.3B",
    tensors=(EMBEDDING, *PAIRED_ATTENTION, *FEED_FORWARD, *NORMS, NORM, HEAD),
    model=_MODEL,
    entries=(*_ENTRIES, Same("head_dim", "head_dim", default=128), Biases()),
    layer_entries=(Rope(base=500000.0),),
)

_COUNT, _CHOSEN = ("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok")
_FIRST, _LAST, _STEP = "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"
_SHARED, _WIDTH, _LEAST = "moe_num_shared_experts", "moe_intermediate_size", "moe_norm_min"


@dataclass(frozen=True)
class ErnieExperts:
    """Experts in layers at a fixed interval, from a first to a last one."""

    count: tuple[str, ...] = _COUNT
    per_token: tuple[str, ...] = _CHOSEN

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.count, *self.per_token, _FIRST, _LAST, _STEP, _SHARED, _WIDTH, _LEAST)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        least = hf_config.positive(_LEAST, 1e-12)
        if least > 1e-6:  # what a sum of probabilities is divided by at least; ours has no such limit
            raise hf_config.refusal(_LEAST, least, "at most 1e-6")
        count, per_token = hf_config.agreed(*self.count), hf_config.agreed(*self.per_token)
        experts = ExpertsConfig(
            hf_config.integer(count, 64), hf_config.integer(per_token, 6), hf_config.integer(_WIDTH, 1536),
            shared=_index(hf_config, _SHARED, 2), router="biased_softmax",
        )  # fmt: skip
        if experts.per_token > experts.count:
            raise hf_config.refusal(per_token, experts.per_token, f"at most {experts.count} experts")
        first, step = _index(hf_config, _FIRST, 1), hf_config.integer(_STEP, 1)
        last = layers - 1 if hf_config.get(_LAST, -1) == -1 else _index(hf_config, _LAST, -1)
        routed = _routed(layers, first, last, step)
        if not any(routed):
            raise hf_config.refusal(_FIRST, first, "at least one layer with experts")
        return [{"experts": experts if one else None} for one in routed]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        routed = [model.experts is not None for model in models]
        model = next((one for one in models if one.experts is not None), models[0])
        experts, inside = model.experts or ExpertsConfig(0), [index for index, one in enumerate(routed) if one] or [0]
        steps = range(1, len(models) + 1)
        step = next((one for one in steps if _routed(len(models), inside[0], inside[-1], one) == routed), 1)
        return {
            _COUNT[0]: experts.count, _CHOSEN[0]: experts.per_token, _FIRST: inside[0], _LAST: inside[-1], _STEP: step,
            _SHARED: experts.shared, _WIDTH: model.mlp if experts.width is None else experts.width, _LEAST: 1e-12,
        }  # fmt: skip


def _index(hf_config: HFConfig, key: str, default: int) -> int:
    """The value of a key that is an integer, 0 or more."""
    value = hf_config.get(key, default)
    if type(value) is not int or value < 0:
        raise hf_config.refusal(key, value, "a whole number, 0 or more")
    return value


def _routed(layers: int, first: int, last: int, step: int) -> list[bool]:
    """Whether each layer has experts."""
    return [(layer + 1) % step == 0 and first <= layer <= last for layer in range(layers)]


ERNIE4_5_MOE = Family(
    name="ernie4_5_moe",
    model_type="ernie4_5_moe",
    architecture="Ernie4_5_MoeForCausalLM",
    presets="ERNIE 4.5 21B-A3B and 300B-A47B",
    tensors=(
        EMBEDDING,
        *PAIRED_ATTENTION,
        *FEED_FORWARD,
        *EXPERTS,
        Tensor("model.layers.{layer}.mlp.moe_statics.e_score_correction_bias", "layers.mlp.bias", Form.ROW),
        *SHARED,
        *NORMS,
        NORM,
        HEAD,
    ),
    model=_MODEL,
    entries=(*_ENTRIES, HEAD_DIM, Only("use_bias", (False,))),
    layer_entries=(Rope(base=500000.0), ErnieExperts()),
    unused=(*UNUSED, "moe_capacity", "moe_gate", "moe_use_aux_free", "num_nextn_predict_layers"),
    omitted=("model.mtp_",),
)
