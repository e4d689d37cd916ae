"""MiniMax-M2: attention alone, and experts of a router of sigmoids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.counting import rotary_dim
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import (
    ATTENTION,
    EMBEDDING,
    GROUPED_SIZES,
    HEAD,
    NORM,
    NORM_EPSILON,
    NORMS,
    QK_NORMS,
    SILU,
    TIED,
)
from jaxpar.interop.families.mixtral import EXPERTS
from jaxpar.interop.mapping.expert_keys import UNUSED, RoutedExperts
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.rope_keys import Rope

_WIDTH, _SHARE = "rotary_dim", "partial_rotary_factor"


@dataclass(frozen=True)
class RotaryWidth(Rope):
    """Rotary embeddings of the first `rotary_dim` dims of a head."""

    keys: tuple[str, ...] = (*Rope().keys, _WIDTH)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        if hf_config.get(_WIDTH) is None:
            return super().read(hf_config, layers)
        width, head = hf_config.integer(_WIDTH), hf_config.integer("head_dim", 128)
        if width > head:
            raise hf_config.refusal(_WIDTH, width, f"at most head_dim, {head}")
        stated = hf_config.values.get(_SHARE)
        share = width / head if stated is None else stated
        return super().read(HFConfig(hf_config.file, {**hf_config.values, _SHARE: share}), layers)

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        return super().write(models) | {_WIDTH: rotary_dim(models[0])}


@dataclass(frozen=True)
class FullAttention:
    """A list of layers with 1 for attention, where earlier models have another mixer too."""

    keys: tuple[str, ...] = ("attn_type_list",)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        types = hf_config.get(self.keys[0])
        if types is not None and types != [1] * layers:
            raise hf_config.refusal(self.keys[0], types, f"1 for each of {layers} layers")
        return [{}] * layers

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        return {}


MINIMAX_M2 = Family(
    name="minimax_m2",
    model_type="minimax_m2",
    architecture="MiniMaxM2ForCausalLM",
    presets="MiniMax-M2 and M2.1",
    tensors=(
        EMBEDDING,
        *ATTENTION,
        *QK_NORMS,
        *EXPERTS,
        Tensor("model.layers.{layer}.block_sparse_moe.e_score_correction_bias", "layers.mlp.bias", Form.VECTOR),
        *NORMS,
        NORM,
        HEAD,
    ),
    model={"norm": "rmsnorm", "activation": "swiglu", "qk_norm": "projection"},
    entries=(
        *GROUPED_SIZES,
        Same("head_dim", "head_dim", default=128),
        SILU,
        NORM_EPSILON,
        TIED,
        Only("attention_bias", (False,)),
        Only("use_qk_norm", (True,)),
        Only("qk_norm_type", ("per_layer",)),
        Only("scoring_func", ("sigmoid",)),
        Only("use_routing_bias", (True,)),
        Only("shared_intermediate_size", (0,)),
        *(Only(f"layernorm_{part}_beta", (1.0,)) for part in ("full_attention", "linear_attention", "mlp")),
    ),
    layer_entries=(
        RotaryWidth(base=5000000.0, partial=1.0),
        FullAttention(),
        RoutedExperts(("num_local_experts", "num_experts"), router="sigmoid"),
    ),
    unused=(
        *UNUSED,
        "router_jitter_noise",
        "use_mtp",
        "num_mtp_modules",
        "mtp_transformer_layers",
        "shared_moe_mode",
        "mlp_intermediate_size",
    ),
    quantizations=("fp8",),
)
