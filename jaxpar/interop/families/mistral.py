"""Mistral's dense models: Llama with a sliding window, in Ministral 8B of some layers."""

from __future__ import annotations

from jaxpar.interop.families.llama import GROUPED_SIZES, HEAD_DIM, NORM_EPSILON, SILU, TENSORS, TIED
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.layer_keys import Windows, all_local
from jaxpar.interop.mapping.rope_keys import Rope

_MODEL = {"norm": "rmsnorm", "activation": "swiglu"}
_ENTRIES = (*GROUPED_SIZES, HEAD_DIM, SILU, NORM_EPSILON, TIED)

MISTRAL = Family(
    name="mistral",
    model_type="mistral",
    architecture="MistralForCausalLM",
    presets="Mistral 7B, v0.1 to v0.3, and NeMo",
    tensors=TENSORS,
    model=_MODEL,
    entries=_ENTRIES,
    layer_entries=(Rope(), Windows(all_local, typed=False, absent=4096)),
)

MINISTRAL = Family(
    name="ministral",
    model_type="ministral",
    architecture="MinistralForCausalLM",
    presets="Ministral 8B",
    tensors=TENSORS,
    model=_MODEL,
    entries=_ENTRIES,
    layer_entries=(Rope(), Windows(all_local, absent=4096)),
)
