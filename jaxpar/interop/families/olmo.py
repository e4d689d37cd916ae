"""OLMo 2 and OLMoE."""

from __future__ import annotations

from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    FEED_FORWARD,
    HEAD,
    NORM,
    NORMS,
    QK_NORMS,
    SILU,
    SIZES,
    TIED,
)
from jaxpar.interop.mapping.expert_keys import EXPERTS, UNUSED, RoutedExperts
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.rope_keys import Rope

OLMO2 = Family(
    name="olmo2",
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    presets="OLMo 2",
    tensors=(
        EMBEDDING,
        *ATTENTION,
        *QK_NORMS,
        *FEED_FORWARD,
        Tensor("model.layers.{layer}.post_attention_layernorm.weight", "layers.post_attention_norm.scale", Form.VECTOR),
        Tensor("model.layers.{layer}.post_feedforward_layernorm.weight", "layers.post_mlp_norm.scale", Form.VECTOR),
        NORM,
        HEAD,
    ),
    model={"norm": "rmsnorm", "norm_placement": "post", "activation": "swiglu", "qk_norm": "projection"},
    entries=(
        *SIZES,
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        ATTENTION_BIAS,
        TIED,
    ),
    layer_entries=(Rope(),),
)

OLMOE = Family(
    name="olmoe",
    model_type="olmoe",
    architecture="OlmoeForCausalLM",
    presets="OLMoE 1B-7B",
    tensors=(EMBEDDING, *ATTENTION, *QK_NORMS, *EXPERTS, *NORMS, NORM, HEAD),
    model={"norm": "rmsnorm", "activation": "swiglu", "qk_norm": "projection"},
    entries=(
        *SIZES,
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        ATTENTION_BIAS,
        TIED,
        Only("clip_qkv", (None,)),
    ),
    layer_entries=(Rope(), RoutedExperts(("num_experts", "num_local_experts"), normalised="norm_topk_prob")),
    unused=UNUSED,
)
