"""Apertus: a feed-forward with xIELU, and norms of queries and keys."""

from __future__ import annotations

from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    HEAD,
    HEAD_DIM,
    NORM,
    PLAIN_FEED_FORWARD,
    QK_NORMS,
    SIZES,
    TIED,
)
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.rope_keys import Rope
from jaxpar.layers.feed_forward.xielu import BETA, EPSILON

_BASE = 12000000.0
_SCALING = {
    "rope_type": "llama3", "rope_theta": _BASE, "factor": 8.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
"""The rotary embeddings of a model that states none."""
_LAYER, _NUMBERS = "model.layers.{layer}", "model.layers.{layer}.mlp.act_fn"

APERTUS = Family(
    name="apertus",
    model_type="apertus",
    architecture="ApertusForCausalLM",
    presets="Apertus 8B and 70B",
    tensors=(
        EMBEDDING,
        *ATTENTION,
        *QK_NORMS,
        *PLAIN_FEED_FORWARD,
        Tensor(f"{_NUMBERS}.alpha_p", "layers.mlp.alpha_p", Form.VECTOR),
        Tensor(
            f"{_NUMBERS}.alpha_n",
            "layers.mlp.alpha_n",
            Form.VECTOR,
            constants=((f"{_NUMBERS}.beta", BETA), (f"{_NUMBERS}.eps", EPSILON)),
        ),
        Tensor(f"{_LAYER}.attention_layernorm.weight", "layers.attention_norm.scale", Form.VECTOR),
        Tensor(f"{_LAYER}.feedforward_layernorm.weight", "layers.mlp_norm.scale", Form.VECTOR),
        NORM,
        HEAD,
    ),
    model={"norm": "rmsnorm", "activation": "xielu", "qk_norm": True},
    entries=(
        *SIZES,
        HEAD_DIM,
        Only("hidden_act", ("xielu",)),
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        ATTENTION_BIAS,
        TIED,
    ),
    layer_entries=(Rope(base=_BASE, absent=_SCALING),),
    unused=("qk_norm", "post_norm", "mlp_bias", "hidden_dropout"),
)
