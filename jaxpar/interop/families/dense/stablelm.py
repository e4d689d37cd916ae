"""StableLM: LayerNorm, rotary embeddings on a part of each head, in some models parallel attention and feed-forward."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import GROUPED_SIZES, NORM_BIASES, SILU, TENSORS, TIED
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.rope_keys import Rope


@dataclass(frozen=True)
class ParallelResidual:
    """Whether attention and the feed-forward read the same input."""

    parallel: str
    """Value of `model.norm_placement` if they do; else it is `pre`."""
    absent: bool = False
    """Default of the key."""
    keys: tuple[str, ...] = ("use_parallel_residual",)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        return {"norm_placement": self.parallel if hf_config.flag(self.keys[0], self.absent) else "pre"}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {self.keys[0]: model.norm_placement == self.parallel}


@dataclass(frozen=True)
class QkvBiases:
    """Whether queries, keys and values have biases."""

    keys: tuple[str, ...] = ("use_qkv_bias",)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        return {"attention_bias": "qkv" if hf_config.flag(self.keys[0], default=False) else False}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {self.keys[0]: model.attention_bias == "qkv"}


STABLELM = Family(
    name="stablelm",
    model_type="stablelm",
    architecture="StableLmForCausalLM",
    presets="StableLM 3B 4E1T and StableLM 2 1.6B",
    tensors=(*TENSORS, *NORM_BIASES),
    model={"norm": "layernorm", "activation": "swiglu"},
    entries=(
        *GROUPED_SIZES,
        SILU,
        Same("layer_norm_eps", "norm_epsilon", default=1e-5),
        QkvBiases(),
        ParallelResidual("parallel"),
        Only("qk_layernorm", (False,)),
        TIED,
    ),
    layer_entries=(Rope(partial=0.25),),
    unused=("hidden_dropout", "norm_eps", "rotary_scaling_factor"),
)
