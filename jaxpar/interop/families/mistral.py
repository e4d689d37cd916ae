"""Mistral."""

from __future__ import annotations

from jaxpar.interop.families.llama import ATTENTION, EMBEDDING, FEED_FORWARD, HEAD, HEAD_DIM, NORM, NORMS, SILU, SIZES
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import Same
from jaxpar.interop.mapping.layer_keys import Rope, Windows, all_local

MISTRAL = Family(
    name="mistral",
    model_type="mistral",
    architecture="MistralForCausalLM",
    presets="Mistral 7B, v0.1 to v0.3, and NeMo",
    tensors=(EMBEDDING, *ATTENTION, *FEED_FORWARD, *NORMS, NORM, HEAD),
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *SIZES,
        HEAD_DIM,
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-6),
        Same("tie_word_embeddings", "tied", default=False),
    ),
    layer_entries=(Rope(), Windows(all_local, typed=False, absent=4096)),
)
