"""Granite: factors of embeddings, residuals and logits; dense, with experts, and with Mamba-2 in most layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxpar.config.counting import attention_scale, embedding_scale
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.hybrids.mamba import Expanded
from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    HEAD,
    NORM,
    NORM_EPSILON,
    NORMS,
    SILU,
    SIZES,
    TENSORS,
    TIED,
)
from jaxpar.interop.mapping.expert_keys import UNUSED, RoutedExperts
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import Converted, HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import GLOBAL, LINEAR, layer_types
from jaxpar.interop.mapping.linear_keys import LinearSizes, NoStepLimit, mamba2_tensors, with_state
from jaxpar.interop.mapping.rope_keys import Rope


@dataclass(frozen=True)
class ResidualMultiplier:
    """The factor of the output of all blocks."""

    keys: tuple[str, ...] = ("residual_multiplier",)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        factor = float(hf_config.positive(self.keys[0], 1.0))
        return {"residual": {"mixer_output": factor, "mlp_output": factor}}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {self.keys[0]: model.residual.mlp_output}


_FACTORS = (
    Converted("embedding_multiplier", "embedding_scale", 1.0, float, embedding_scale),
    Converted("attention_multiplier", "attention_scale", 1.0, float, attention_scale),
    Same("logits_scaling", "logit_divisor", default=1.0),
    ResidualMultiplier(),
)
_MODEL = {"norm": "rmsnorm", "activation": "swiglu"}

GRANITE = Family(
    name="granite",
    model_type="granite",
    architecture="GraniteForCausalLM",
    presets="Granite 3, dense ones",
    tensors=TENSORS,
    model=_MODEL,
    entries=(
        *SIZES, SILU, NORM_EPSILON, ATTENTION_BIAS, Same("mlp_bias", "mlp_bias", default=False), TIED, *_FACTORS,
    ),
    layer_entries=(Rope(),),
)  # fmt: skip

_EXPERTS, _SHARED = "model.layers.{layer}.block_sparse_moe", "model.layers.{layer}.shared_mlp"
_ROUTED = (
    Tensor(f"{_EXPERTS}.input_linear.weight", "layers.mlp.gate layers.mlp.up", all_experts=True),
    Tensor(f"{_EXPERTS}.output_linear.weight", "layers.mlp.down", all_experts=True),
    Tensor(f"{_EXPERTS}.router.layer.weight", "layers.mlp.router"),
)

GRANITEMOE = Family(
    name="granitemoe",
    model_type="granitemoe",
    architecture="GraniteMoeForCausalLM",
    presets="Granite 3 with experts",
    tensors=(EMBEDDING, *ATTENTION, *_ROUTED, *NORMS, NORM, HEAD),
    model=_MODEL,
    entries=(*SIZES, SILU, NORM_EPSILON, ATTENTION_BIAS, TIED, *_FACTORS),
    layer_entries=(Rope(), RoutedExperts(("num_local_experts",))),
    unused=UNUSED,
)


@dataclass(frozen=True)
class Positions:
    """Whether attention has rotary embeddings."""

    keys: tuple[str, ...] = ("position_embedding_type",)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        value = hf_config.get(self.keys[0])
        if value not in (None, "nope", "rope"):
            raise hf_config.refusal(self.keys[0], value, "rope or null")
        return {"position": "rope" if value == "rope" else "none"}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {self.keys[0]: "rope" if model.position == "rope" else None}


@dataclass(frozen=True)
class SharedFeedForward:
    """A feed-forward of all tokens, and experts beside it unless their number is 0."""

    keys: tuple[str, ...] = (
        "num_local_experts",
        "num_experts_per_tok",
        "intermediate_size",
        "shared_intermediate_size",
    )

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        count, chosen, width, shared = self.keys
        of_all = hf_config.integer(shared, 1024)
        if hf_config.get(count) == 0:
            return {"mlp": of_all, "experts": None}
        each, experts, per_token = (
            hf_config.integer(key, usual) for key, usual in ((width, 11008), (count, 8), (chosen, 2))
        )
        if of_all % each:
            raise hf_config.refusal(shared, of_all, f"a multiple of {width}, {each}")
        if per_token > experts:
            raise hf_config.refusal(chosen, per_token, f"at most {experts} experts")
        return {"mlp": each, "experts": ExpertsConfig(experts, per_token, shared=of_all // each)}

    def write(self, model: ModelConfig) -> dict[str, object]:
        if (experts := model.experts) is None:
            return dict(zip(self.keys, (0, 0, model.mlp, model.mlp), strict=True))
        width = model.mlp if experts.width is None else experts.width
        return dict(zip(self.keys, (experts.count, experts.per_token, width, experts.shared * width), strict=True))


_NAMES = {LINEAR: LINEAR, GLOBAL: GLOBAL, "mamba": LINEAR, "attention": GLOBAL}
"""Types of layers, as transformers 5 and as publishers write them."""


@dataclass(frozen=True)
class MambaTypes:
    """The type of each layer, Mamba-2 where none is stated."""

    keys: tuple[str, ...] = ("layer_types", "layers_block_type")

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        stated = hf_config.get(hf_config.agreed(*self.keys))
        renamed = [_NAMES.get(one, one) for one in stated] if isinstance(stated, list) else stated
        types = layer_types(
            HFConfig(hf_config.file, {"layer_types": renamed}), layers, lambda *_: [LINEAR] * layers, (LINEAR, GLOBAL)
        )
        return [{"mixer": "mamba2" if one == LINEAR else "attention"} for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        return {"layer_types": [LINEAR if with_state(model) else GLOBAL for model in models]}


def _without_auto(hf_config: HFConfig) -> HFConfig:
    """The same with the number that `mamba_d_head: auto` stands for."""
    if hf_config.get("mamba_d_head", "auto") != "auto":
        return hf_config
    width = hf_config.integer("mamba_expand", 2) * hf_config.integer("hidden_size")
    values = {**hf_config.values, "mamba_d_head": width // hf_config.integer("mamba_n_heads", 128)}
    return HFConfig(hf_config.file, values)


@dataclass(frozen=True)
class MambaSizes(LinearSizes):
    """Heads and widths of Mamba-2."""

    names: dict[str, str] = field(
        default_factory=lambda: {
            "heads": "mamba_n_heads", "value_dim": "mamba_d_head", "key_heads": "mamba_n_groups",
            "key_dim": "mamba_d_state",
        }
    )  # fmt: skip
    defaults: dict[str, float] = field(
        default_factory=lambda: {"heads": 128, "value_dim": 64, "key_heads": 1, "key_dim": 256}
    )

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        return super().read(_without_auto(hf_config), layers)


class MambaWidth(Expanded):
    """The entry of `mamba_expand`, the width of a mixer over the embedding's."""

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        return super().read(_without_auto(hf_config))


GRANITEMOEHYBRID = Family(
    name="granitemoehybrid",
    model_type="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    presets="Granite 4",
    tensors=(
        EMBEDDING,
        *mamba2_tensors("model.layers.{layer}.mamba"),
        *ATTENTION,
        *_ROUTED,
        Tensor(f"{_SHARED}.input_linear.weight", "layers.mlp.shared_gate layers.mlp.shared_up"),
        Tensor(f"{_SHARED}.output_linear.weight", "layers.mlp.shared_down"),
        Tensor(f"{_SHARED}.input_linear.weight", "layers.mlp.gate layers.mlp.up"),
        Tensor(f"{_SHARED}.output_linear.weight", "layers.mlp.down"),
        *NORMS,
        Tensor("model.layers.{layer}.input_layernorm.weight", "layers.mixer_norm.scale", Form.VECTOR),
        NORM,
        HEAD,
    ),
    model=_MODEL,
    entries=(
        *(entry for entry in SIZES if "intermediate_size" not in entry.keys),
        SharedFeedForward(),
        Positions(),
        MambaWidth("mamba_expand", "mamba_n_heads", "mamba_d_head"),
        SILU,
        NORM_EPSILON,
        ATTENTION_BIAS,
        Only("mamba_d_conv", (4,)),
        Only("mamba_conv_bias", (True,)),
        Only("mamba_proj_bias", (False,)),
        NoStepLimit(),
        TIED,
        *_FACTORS,
    ),
    layer_entries=(Rope(), MambaTypes(), MambaSizes()),
    unused=(*UNUSED, "mamba_chunk_size", "normalization_function", "init_method", "embedding_dropout"),
)
