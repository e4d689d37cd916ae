"""Gemma 3n's text part: several residual streams, a learned residual, sparse gates, inputs of each layer, and layers
that attend to keys and values of earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.counting import streams_of
from jaxpar.config.mappings.residual import MOST_STREAMS, AltUpConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.gemma import COMMON, HEAD_DIM, WITH_QK_NORMS
from jaxpar.interop.families.hybrids.gemma4 import INPUTS_OF_LAYERS, MODEL, PerLayer, sources_of
from jaxpar.interop.families.llama import GROUPED_SIZES
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import GLOBAL, LOCAL, Windows, layer_types
from jaxpar.interop.mapping.rope_keys import RopeByType


def four_to_one(hf_config: HFConfig, layers: int) -> list[str]:
    """Types of layers with the window, except every fifth."""
    return [LOCAL if (layer + 1) % 5 else GLOBAL for layer in range(layers)]


@dataclass(frozen=True)
class Streams:
    """The keys of residual streams."""

    keys: tuple[str, ...] = ("altup_num_inputs", "altup_active_idx", "altup_coef_clip")

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        streams = hf_config.integer("altup_num_inputs", 4)
        if not 2 <= streams <= MOST_STREAMS:
            raise hf_config.refusal("altup_num_inputs", streams, f"2 to {MOST_STREAMS} residual streams")
        active = hf_config.get("altup_active_idx", 0)
        if type(active) is not int or not 0 <= active < streams:
            raise hf_config.refusal("altup_active_idx", active, f"a whole number below {streams}")
        # Null is none, and no key is the default.
        clip = hf_config.get("altup_coef_clip", 120.0)
        clip = None if clip is None else float(hf_config.positive("altup_coef_clip", clip))
        return {"altup": AltUpConfig(streams, active, clip)}

    def write(self, model: ModelConfig) -> dict[str, object]:
        altup = model.altup or AltUpConfig()
        return {
            "altup_num_inputs": streams_of(model), "altup_active_idx": altup.active, "altup_coef_clip": altup.clip,
        }  # fmt: skip


@dataclass(frozen=True)
class Inputs(PerLayer):
    """Inputs of layers, which all models of the family have."""

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        hf_config.integer("hidden_size_per_layer_input", 256)
        return super().read(hf_config)


@dataclass(frozen=True)
class ByLayer:
    """A key with one number for each layer, or in `config.json` one for all."""

    theirs: str
    ours: str
    default: object

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.theirs,)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        stated = hf_config.get(self.theirs, self.default)
        each = stated if isinstance(stated, list) else [stated] * layers
        if len(each) != layers:
            raise hf_config.refusal(self.theirs, stated, f"a list of {layers}, one for each layer")
        return [{self.ours: hf_config.checked_value(self.theirs, one, self.ours)} for one in each]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        return {self.theirs: [getattr(model, self.ours) for model in models]}


@dataclass(frozen=True)
class SharedKeys:
    """`num_kv_shared_layers`: the last layers attend to keys of earlier ones."""

    keys: tuple[str, ...] = ("num_kv_shared_layers",)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        types = layer_types(hf_config, layers, four_to_one)
        return [{"keys_of": source} for source in sources_of(hf_config, types, default=15)]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        return {"num_kv_shared_layers": sum(model.keys_of is not None for model in models)}


@dataclass(frozen=True)
class Sparsity(ByLayer):
    """`activation_sparsity_pattern`: without it the first ten layers are sparse, if there are more."""

    theirs: str = "activation_sparsity_pattern"
    ours: str = "activation_sparsity"
    default: object = None

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        if hf_config.get(self.theirs) is None:
            return [{self.ours: 0.95 if layers > 10 and layer < 10 else 0.0} for layer in range(layers)]
        return super().read(hf_config, layers)


_LAYER, _ALTUP = "model.layers.{layer}", "model.layers.{layer}.altup"

GEMMA3N = Family(
    name="gemma3n",
    model_type="gemma3n_text",
    architecture="Gemma3nForCausalLM",
    presets="Gemma 3n E2B and E4B, without their images and sounds",
    tensors=(
        *WITH_QK_NORMS,
        *(
            Tensor(f"model.altup_projections.{index - 1}.weight", f"embedding.stream_{index}")
            for index in range(1, MOST_STREAMS)
        ),
        *(
            Tensor(f"model.altup_unembed_projections.{index - 1}.weight", f"final_norm.stream_{index}")
            for index in range(1, MOST_STREAMS)
        ),
        Tensor(f"{_ALTUP}.correct_output_scale", "layers.altup.output_scale", Form.VECTOR),
        Tensor(f"{_ALTUP}.correction_coefs.weight", "layers.altup.correction"),
        Tensor(f"{_ALTUP}.prediction_coefs.weight", "layers.altup.prediction"),
        Tensor(f"{_ALTUP}.modality_router.weight", "layers.altup.router"),
        Tensor(f"{_ALTUP}.router_norm.weight", "layers.altup_norm.scale", Form.VECTOR),
        *INPUTS_OF_LAYERS,
        Tensor(f"{_LAYER}.laurel.linear_left.weight", "layers.laurel.left"),
        Tensor(f"{_LAYER}.laurel.linear_right.weight", "layers.laurel.right"),
        Tensor(f"{_LAYER}.laurel.post_laurel_norm.weight", "layers.post_laurel_norm.scale", Form.VECTOR),
    ),
    model=MODEL,
    entries=(
        *(one for one in GROUPED_SIZES if one.ours != "mlp"),
        HEAD_DIM,
        *COMMON,
        Only("hidden_activation", ("gelu_pytorch_tanh",)),
        Same("final_logit_softcapping", "logit_softcap", default=30.0, annotation=float),
        Streams(),
        Inputs(),
        Only("altup_correct_scale", (True,)),
        Same("laurel_rank", "laurel_rank", default=64, annotation=int),
    ),
    layer_entries=(
        RopeByType(four_to_one),
        Windows(four_to_one, absent=512, always=True),
        ByLayer("intermediate_size", "mlp", 16384),
        Sparsity(),
        SharedKeys(),
    ),
    unused=("query_pre_attn_scalar", "altup_lr_multiplier"),
    buffers=(
        "rotary_emb.inv_freq", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight",
        "self_attn.v_norm.weight",
    ),
)  # fmt: skip
