"""Cohere's models: attention and feed-forward are parallel, and LayerNorm has no bias."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    FEED_FORWARD,
    HEAD,
    HEAD_DIM,
    NORM,
    NORMS,
    SILU,
    SIZES,
)
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import Converted, HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import GLOBAL, LOCAL, RopeOfWindows, Windows
from jaxpar.interop.mapping.rope_keys import Rope

_ROTATED = ("layers.attention.query", "layers.attention.key")


def _types(hf_config: HFConfig, layers: int) -> list[str]:
    """Layers with the window, except every `sliding_window_pattern`-th."""
    period = hf_config.integer("sliding_window_pattern", 4)
    return [LOCAL if (layer + 1) % period else GLOBAL for layer in range(layers)]


class HeadNorms:
    """Whether queries and keys have a LayerNorm."""

    keys: tuple[str, ...] = ("use_qk_norm",)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        return {"qk_norm": "layernorm" if hf_config.flag(self.keys[0], default=False) else False}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {self.keys[0]: model.qk_norm == "layernorm"}


_TENSORS = (
    EMBEDDING,
    *(replace(line, rotary=line.weights.startswith(_ROTATED)) for line in ATTENTION),
    *FEED_FORWARD,
    NORMS[0],
    NORM,
    HEAD,
)
_NORMS_OF_HEADS = tuple(
    Tensor(f"model.layers.{{layer}}.self_attn.{theirs}.weight", f"layers.attention.{ours}", Form.ROWS, rotary=True)
    for theirs, ours in (("q_norm", "query_norm"), ("k_norm", "key_norm"))
)
_MODEL = {"norm": "unbiased_layernorm", "norm_placement": "parallel", "activation": "swiglu"}
_ENTRIES = (
    *SIZES,
    HEAD_DIM,
    SILU,
    Same("layer_norm_eps", "norm_epsilon", default=1e-5),
    ATTENTION_BIAS,
    Converted("logit_scale", "logit_divisor", 0.0625, lambda scale: 1 / scale, lambda model: 1 / model.logit_divisor),
    Same("tie_word_embeddings", "tied", default=True),
)
_PUBLISHED = (
    "layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct", "use_embedding_sharing",
    "use_gated_activation", "use_parallel_block", "use_parallel_embedding", "model_max_length",
)  # fmt: skip
"""Keys in published files that transformers does not read."""

COHERE = Family(
    name="cohere",
    model_type="cohere",
    architecture="CohereForCausalLM",
    presets="Command R and R+ of 2024, Aya 23 and Aya Expanse",
    tensors=(*_TENSORS, *_NORMS_OF_HEADS),
    model=_MODEL,
    entries=(*_ENTRIES, HeadNorms()),
    layer_entries=(Rope(base=500000.0),),
    unused=_PUBLISHED,
)

COHERE2 = Family(
    name="cohere2",
    model_type="cohere2",
    architecture="Cohere2ForCausalLM",
    presets="Command R7B and Command A",
    tensors=_TENSORS,
    model=_MODEL,
    entries=(*_ENTRIES, Only("use_qk_norm", (False,))),
    layer_entries=(
        Rope(),
        Windows(_types, absent=4096, beside=("sliding_window_pattern",), always=True),
        RopeOfWindows(_types, absent=4096),
    ),
    unused=_PUBLISHED,
)
