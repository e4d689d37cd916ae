"""Arcee's foundation models: Llama with a squared ReLU instead of a gated feed-forward."""

from __future__ import annotations

from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    HEAD,
    HEAD_DIM,
    NORM,
    NORMS,
    PLAIN_FEED_FORWARD,
    SIZES,
    TIED,
)
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.rope_keys import Rope

ARCEE = Family(
    name="arcee",
    model_type="arcee",
    architecture="ArceeForCausalLM",
    presets="Arcee's AFM 4.5B",
    tensors=(EMBEDDING, *ATTENTION, *PLAIN_FEED_FORWARD, *NORMS, NORM, HEAD),
    model={"norm": "rmsnorm", "activation": "relu2"},
    entries=(
        *SIZES,
        HEAD_DIM,
        Only("hidden_act", ("relu2",)),
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        ATTENTION_BIAS,
        Same("mlp_bias", "mlp_bias", default=False),
        TIED,
    ),
    layer_entries=(Rope(),),
)
