"""OLMo 1 to 3, and OLMoE."""

from __future__ import annotations

from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    FEED_FORWARD,
    HEAD,
    NORM,
    NORMS,
    OUTPUT_NORMS,
    QK_NORMS,
    SILU,
    SIZES,
    TIED,
)
from jaxpar.interop.mapping.expert_keys import EXPERTS, UNUSED, RoutedExperts
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.layer_keys import Windows, three_to_one
from jaxpar.interop.mapping.rope_keys import Rope, RopeByType

_TENSORS = (EMBEDDING, *ATTENTION, *QK_NORMS, *FEED_FORWARD, *OUTPUT_NORMS, NORM, HEAD)
_MODEL = {"norm": "rmsnorm", "norm_placement": "post", "activation": "swiglu", "qk_norm": "projection"}
_ENTRIES = (*SIZES, SILU, Same("rms_norm_eps", "norm_epsilon", default=1e-5), ATTENTION_BIAS, TIED)

OLMO = Family(
    name="olmo",
    model_type="olmo",
    architecture="OlmoForCausalLM",
    presets="OLMo, its first generation",
    tensors=(EMBEDDING, *ATTENTION, *FEED_FORWARD, HEAD),
    model={"norm": "weightless_layernorm", "norm_epsilon": 1e-5, "activation": "swiglu"},
    entries=(*SIZES, SILU, ATTENTION_BIAS, TIED, Same("clip_qkv", "qkv_clip", default=None)),
    layer_entries=(Rope(),),
)

OLMO2 = Family(
    name="olmo2",
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    presets="OLMo 2",
    tensors=_TENSORS,
    model=_MODEL,
    entries=_ENTRIES,
    layer_entries=(Rope(),),
)

OLMO3 = Family(
    name="olmo3",
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    presets="OLMo 3",
    tensors=_TENSORS,
    model=_MODEL,
    entries=_ENTRIES,
    layer_entries=(
        RopeByType(three_to_one, base=500000.0, local_base=500000.0, bases=None),
        Windows(three_to_one, absent=4096, always=True),
    ),
)

OLMOE = Family(
    name="olmoe",
    model_type="olmoe",
    architecture="OlmoeForCausalLM",
    presets="OLMoE 1B-7B",
    tensors=(EMBEDDING, *ATTENTION, *QK_NORMS, *EXPERTS, *NORMS, NORM, HEAD),
    model={"norm": "rmsnorm", "activation": "swiglu", "qk_norm": "projection"},
    entries=(*_ENTRIES, Only("clip_qkv", (None,))),
    layer_entries=(Rope(), RoutedExperts(("num_experts", "num_local_experts"), normalised="norm_topk_prob")),
    unused=UNUSED,
)
