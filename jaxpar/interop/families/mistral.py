"""Mistral's dense models: Llama with a sliding window, in Ministral 8B of some layers;
Ministral 3 has queries that grow with the position."""

from __future__ import annotations

from jaxpar.interop.families.llama import GROUPED_SIZES, HEAD_DIM, NORM_EPSILON, SILU, TENSORS, TIED
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import Same
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
    layer_entries=(Rope(), Windows(all_local, absent=4096, always=True)),
)

YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
"""The rotary embeddings of a Ministral 3 that states none; those of Mistral 4 have other numbers."""

MINISTRAL3 = Family(
    name="ministral3",
    model_type="ministral3",
    architecture="Ministral3ForCausalLM",
    presets="Ministral 3 3B, 8B and 14B without their images",
    tensors=TENSORS,
    model=_MODEL,
    entries=(
        *GROUPED_SIZES,
        Same("head_dim", "head_dim", default=128),
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        TIED,
    ),
    layer_entries=(
        Rope(scalings=("yarn",), unused=("max_position_embeddings",), absent=YARN, temperature="llama_4_scaling_beta"),
        Windows(all_local, typed=False),
    ),
)
