"""The Mistral family: Llama with a sliding window."""

from __future__ import annotations

from jaxpar.interop.families.llama import GROUPED_SIZES, HEAD_DIM, NORM_EPSILON, SILU, TENSORS, TIED
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.layer_keys import Windows, all_local
from jaxpar.interop.mapping.rope_keys import Rope

MISTRAL = Family(
    name="mistral",
    model_type="mistral",
    architecture="MistralForCausalLM",
    presets="Mistral 7B, v0.1 to v0.3, and NeMo",
    tensors=TENSORS,
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *GROUPED_SIZES,
        HEAD_DIM,
        SILU,
        NORM_EPSILON,
        TIED,
    ),
    layer_entries=(Rope(), Windows(all_local, typed=False, absent=4096)),
)
