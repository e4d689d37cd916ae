"""Phi-3 and Phi-4: queries, keys and values in one tensor, gate and up in another, and LongRoPE in some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import EMBEDDING, HEAD, NORM, NORMS, SILU, SIZES, TIED
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import Windows, all_local
from jaxpar.interop.mapping.rope_keys import LENGTH, Rope

_TYPES = ("longrope", "su", "yarn")
"""Names of LongRoPE; transformers reads `yarn` so in this family."""


@dataclass(frozen=True)
class LongRope(Rope):
    """Rotary embeddings whose original length is a separate key, and their factor the ratio of two lengths."""

    scalings: tuple[str, ...] = ("default", "longrope")
    partial: float | None = 1.0
    keys: tuple[str, ...] = (*Rope().keys, LENGTH)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        values = {**hf_config.values}
        for key in ("rope_scaling", "rope_parameters"):
            mapping = values.get(key)
            if isinstance(mapping, dict) and mapping.get("rope_type", mapping.get("type")) in _TYPES:
                values[key] = self._spelled_out(hf_config, key, mapping)
        return super().read(HFConfig(hf_config.file, values), layers)

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        rope = models[0].rope
        return super().write(models) | ({LENGTH: rope.original_length} if rope.scaling == "longrope" else {})

    def _spelled_out(self, hf_config: HFConfig, key: str, mapping: Mapping[str, object]) -> dict[str, object]:
        """A mapping with its type, length and factor."""
        original = hf_config.integer(LENGTH, 4096)
        hf_config.agreed_of({LENGTH: original, f"{key}.{LENGTH}": mapping.get(LENGTH)})
        made = {name: value for name, value in mapping.items() if name != "type"}
        if made.get("factor") is None:
            made["factor"] = hf_config.integer("max_position_embeddings", 4096) / original
        return made | {LENGTH: original, "rope_type": "longrope"}


PHI3 = Family(
    name="phi3",
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    presets="Phi-3 and 3.5 mini, Phi-3 medium, Phi-4 and Phi-4-mini",
    tensors=(
        EMBEDDING,
        Tensor("model.layers.{layer}.self_attn.o_proj.weight", "layers.attention.output"),
        Tensor(
            "model.layers.{layer}.self_attn.qkv_proj.weight",
            "layers.attention.query layers.attention.key layers.attention.value",
        ),
        Tensor("model.layers.{layer}.mlp.gate_up_proj.weight", "layers.mlp.gate layers.mlp.up"),
        Tensor("model.layers.{layer}.mlp.down_proj.weight", "layers.mlp.down"),
        *NORMS,
        NORM,
        HEAD,
    ),
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *SIZES,
        SILU,
        Only("attention_bias", (False,)),
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        TIED,
    ),
    layer_entries=(LongRope(), Windows(all_local, typed=False)),
    unused=("embd_pdrop", "resid_pdrop", "full_attn_mod", "interpolate_factor"),
)
