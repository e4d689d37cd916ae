"""StarCoder 2: LayerNorm, biases everywhere, and a feed-forward without a gate."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import (
    ATTENTION,
    EMBEDDING,
    GROUPED_SIZES,
    HEAD,
    HEAD_DIM,
    NORM,
    NORM_BIASES,
    NORMS,
    linear,
)
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import Windows, all_local
from jaxpar.interop.mapping.rope_keys import Rope


@dataclass(frozen=True)
class AllBiases:
    """The key for all biases of attention and of the feed-forward."""

    keys: tuple[str, ...] = ("use_bias",)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        biased = hf_config.flag(self.keys[0], default=True)
        return {"attention_bias": biased, "mlp_bias": biased}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {self.keys[0]: model.mlp_bias}


STARCODER2 = Family(
    name="starcoder2",
    model_type="starcoder2",
    architecture="Starcoder2ForCausalLM",
    presets="StarCoder2 3B, 7B and 15B",
    tensors=(
        EMBEDDING, *ATTENTION, *linear("mlp.c_fc", "mlp.up"), *linear("mlp.c_proj", "mlp.down"), *NORMS, NORM,
        *NORM_BIASES, HEAD,
    ),
    model={"norm": "layernorm", "activation": "gelu"},
    entries=(
        *GROUPED_SIZES,
        HEAD_DIM,
        Only("hidden_act", ("gelu_pytorch_tanh", "gelu_new")),
        Same("norm_epsilon", "norm_epsilon", default=1e-5),
        AllBiases(),
        Same("tie_word_embeddings", "tied", default=True),
    ),
    layer_entries=(Rope(), Windows(all_local, typed=False)),
    unused=(
        "residual_dropout", "embedding_dropout", "layer_norm_epsilon", "norm_type", "mlp_type", "scale_attn_weights",
        "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
    ),
)  # fmt: skip
