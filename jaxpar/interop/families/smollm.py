"""SmolLM 3: every fourth layer has no positions."""

from __future__ import annotations

from jaxpar.interop.families.llama import ATTENTION_BIAS, GROUPED_SIZES, NORM_EPSILON, SILU, TENSORS
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.layer_keys import NoRope, NoWindows
from jaxpar.interop.mapping.rope_keys import Rope

SMOLLM3 = Family(
    name="smollm3",
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    presets="SmolLM3",
    tensors=TENSORS,
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *GROUPED_SIZES,
        SILU,
        NORM_EPSILON,
        ATTENTION_BIAS,
        Same("mlp_bias", "mlp_bias", default=False),
        Same("tie_word_embeddings", "tied", default=True),
        Only("use_sliding_window", (False,)),
    ),
    layer_entries=(Rope(base=2000000.0), NoRope(), NoWindows()),
    unused=("sliding_window", "max_window_layers"),
)
