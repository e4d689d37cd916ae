"""SmolLM 3: every fourth layer has no positions."""

from __future__ import annotations

from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    FEED_FORWARD,
    HEAD,
    NORM,
    NORMS,
    SILU,
    SIZES,
)
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.layer_keys import NoRope, Rope

SMOLLM3 = Family(
    name="smollm3",
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    presets="SmolLM3",
    tensors=(EMBEDDING, *ATTENTION, *FEED_FORWARD, *NORMS, NORM, HEAD),
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *SIZES,
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-6),
        ATTENTION_BIAS,
        Same("mlp_bias", "mlp_bias", default=False),
        Same("tie_word_embeddings", "tied", default=True),
        Only("use_sliding_window", (False,)),
    ),
    layer_entries=(Rope(base=2000000.0), NoRope()),
    unused=("sliding_window", "layer_types", "max_window_layers"),
)
