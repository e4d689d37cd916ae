"""GLM-4: dense ones with norms around both blocks, and GLM-4.5 and later with experts."""

from __future__ import annotations

from jaxpar.interop.families.deepseek import CORRECTION_BIAS, SHARED
from jaxpar.interop.families.llama import (
    ATTENTION,
    EMBEDDING,
    FEED_FORWARD,
    GROUPED_SIZES,
    HEAD,
    HEAD_DIM,
    NORM,
    NORMS,
    PAIRED_ATTENTION,
    QK_NORMS,
    SILU,
    TIED,
)
from jaxpar.interop.mapping.deepseek_keys import DeepSeekExperts
from jaxpar.interop.mapping.expert_keys import EXPERTS
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import QkvBias, Same
from jaxpar.interop.mapping.rope_keys import Rope

_LAYER = "model.layers.{layer}"

GLM4 = Family(
    name="glm4",
    model_type="glm4",
    architecture="Glm4ForCausalLM",
    presets="GLM-4 0414, 9B and 32B, GLM-Z1",
    tensors=(
        EMBEDDING,
        *PAIRED_ATTENTION,
        Tensor(f"{_LAYER}.mlp.gate_up_proj.weight", "layers.mlp.gate layers.mlp.up"),
        Tensor(f"{_LAYER}.mlp.down_proj.weight", "layers.mlp.down"),
        Tensor(f"{_LAYER}.input_layernorm.weight", "layers.attention_norm.scale", Form.VECTOR),
        Tensor(f"{_LAYER}.post_self_attn_layernorm.weight", "layers.post_attention_norm.scale", Form.VECTOR),
        Tensor(f"{_LAYER}.post_attention_layernorm.weight", "layers.mlp_norm.scale", Form.VECTOR),
        Tensor(f"{_LAYER}.post_mlp_layernorm.weight", "layers.post_mlp_norm.scale", Form.VECTOR),
        NORM,
        HEAD,
    ),
    model={"norm": "rmsnorm", "norm_placement": "sandwich", "activation": "swiglu"},
    entries=(
        *GROUPED_SIZES,
        Same("head_dim", "head_dim", default=128),
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1.5625e-07),
        QkvBias("attention_bias", default=True),
        TIED,
    ),
    layer_entries=(Rope(partial=0.5),),
)

GLM4_MOE = Family(
    name="glm4_moe",
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    presets="GLM-4.5, 4.6 and 4.7, and Air",
    tensors=(
        EMBEDDING, *ATTENTION, *QK_NORMS, *FEED_FORWARD, *EXPERTS, CORRECTION_BIAS, *SHARED, *NORMS, NORM, HEAD,
    ),
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *GROUPED_SIZES,
        HEAD_DIM,
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        QkvBias("attention_bias"),
        Same("use_qk_norm", "qk_norm", default=False, annotation=bool),
        TIED,
    ),
    layer_entries=(Rope(partial=0.5), DeepSeekExperts("sigmoid")),
    unused=("output_router_logits", "num_nextn_predict_layers"),
    quantizations=("fp8",),
    further_layers="num_nextn_predict_layers",
)  # fmt: skip
