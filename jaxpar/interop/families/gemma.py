"""Gemma 1 and 2, and the text models of Gemma 3."""

from __future__ import annotations

from jaxpar.config.counting import attention_scale
from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    FEED_FORWARD,
    GROUPED_SIZES,
    HEAD,
    NORM,
    NORM_EPSILON,
    NORMS,
    QK_NORMS,
)
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import Converted, Only, Same
from jaxpar.interop.mapping.layer_keys import Windows, alternating, five_to_one
from jaxpar.interop.mapping.rope_keys import Rope, RopeByType

NORMS_AROUND = (
    Tensor("model.layers.{layer}.input_layernorm.weight", "layers.attention_norm.scale", Form.VECTOR),
    Tensor("model.layers.{layer}.post_attention_layernorm.weight", "layers.post_attention_norm.scale", Form.VECTOR),
    Tensor("model.layers.{layer}.pre_feedforward_layernorm.weight", "layers.mlp_norm.scale", Form.VECTOR),
    Tensor("model.layers.{layer}.post_feedforward_layernorm.weight", "layers.post_mlp_norm.scale", Form.VECTOR),
)
WITH_QK_NORMS = (EMBEDDING, *ATTENTION, *QK_NORMS, *FEED_FORWARD, *NORMS_AROUND, NORM, HEAD)
"""Tensors of Gemma 3, and of its successors among others."""
_MODEL = {
    "norm": "zero_centered_rmsnorm", "norm_placement": "sandwich", "activation": "geglu", "embedding_scale": True,
}  # fmt: skip
HEAD_DIM = Same("head_dim", "head_dim", default=256)
COMMON = (NORM_EPSILON, ATTENTION_BIAS, Same("tie_word_embeddings", "tied", default=True))
_COMMON = (
    *GROUPED_SIZES,
    HEAD_DIM,
    *COMMON,
    Only("use_bidirectional_attention", (False,)),
)

GEMMA = Family(
    name="gemma",
    model_type="gemma",
    architecture="GemmaForCausalLM",
    presets="Gemma, its first generation, and CodeGemma",
    tensors=(EMBEDDING, *ATTENTION, *FEED_FORWARD, *NORMS, NORM, HEAD),
    model=_MODEL | {"norm_placement": "pre"},
    entries=(
        *_COMMON,
        # transformers reads `gelu` here as the approximation by tanh.
        Only("hidden_act", ("gelu_pytorch_tanh", "gelu")),
    ),
    layer_entries=(Rope(),),
    unused=("hidden_activation",),
)


def _scalar(scale: float) -> float | int:
    """`query_pre_attn_scalar` of the factor of the scores: whole where it is meant to be."""
    scalar = scale**-2
    return round(scalar) if abs(scalar - round(scalar)) < 1e-9 * scalar else scalar


_ENTRIES = (
    *_COMMON,
    Only("hidden_activation", ("gelu_pytorch_tanh",)),
    Converted(
        "query_pre_attn_scalar",
        "attention_scale",
        default=256,
        to_ours=lambda scalar: scalar**-0.5,
        to_theirs=lambda model: _scalar(attention_scale(model)),
    ),
)

GEMMA2 = Family(
    name="gemma2",
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    presets="Gemma 2",
    tensors=(EMBEDDING, *ATTENTION, *FEED_FORWARD, *NORMS_AROUND, NORM, HEAD),
    model=_MODEL,
    entries=(
        *_ENTRIES,
        Same("attn_logit_softcapping", "attention_softcap", default=50.0),
        Same("final_logit_softcapping", "logit_softcap", default=30.0),
    ),
    layer_entries=(Rope(), Windows(alternating, absent=4096, always=True)),
    unused=("hidden_act",),
)

GEMMA3 = Family(
    name="gemma3",
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    presets="Gemma 3 270M and 1B, and others without their images",
    tensors=WITH_QK_NORMS,
    model=_MODEL | {"qk_norm": True},
    entries=(
        *_ENTRIES,
        Only("attn_logit_softcapping", (None,)),  # transformers does not apply it in this family
        Same("final_logit_softcapping", "logit_softcap", default=None),
    ),
    layer_entries=(
        RopeByType(five_to_one),
        Windows(five_to_one, absent=4096, beside=("sliding_window_pattern", "_sliding_window_pattern"), always=True),
    ),
    unused=("hidden_act",),
)
