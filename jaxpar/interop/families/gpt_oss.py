"""gpt-oss: attention sinks, experts with biases whose gate and up take turns in one tensor, perhaps in MXFP4."""

from __future__ import annotations

from jaxpar.interop.families.llama import ATTENTION, EMBEDDING, GROUPED_SIZES, HEAD, NORM, NORMS, SILU, TIED
from jaxpar.interop.mapping.expert_keys import UNUSED, RoutedExperts
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.layer_keys import Windows, alternating
from jaxpar.interop.mapping.rope_keys import Rope

_MLP = "model.layers.{layer}.mlp"
_GATE_UP, _BIASES = "layers.mlp.gate layers.mlp.up", "layers.mlp.gate_bias layers.mlp.up_bias"
_YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip

GPT_OSS = Family(
    name="gpt_oss",
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    presets="gpt-oss 20B and 120B",
    tensors=(
        EMBEDDING,
        Tensor("model.layers.{layer}.self_attn.sinks", "layers.attention.sinks", Form.VECTOR),
        *ATTENTION,
        Tensor(f"{_MLP}.router.weight", "layers.mlp.router"),
        Tensor(f"{_MLP}.router.bias", "layers.mlp.router_bias", Form.VECTOR),
        Tensor(f"{_MLP}.experts.gate_up_proj", _GATE_UP, Form.TABLE, all_experts=True, interleaved=True),
        Tensor(f"{_MLP}.experts.gate_up_proj_bias", _BIASES, Form.VECTOR, all_experts=True, interleaved=True),
        Tensor(f"{_MLP}.experts.down_proj", "layers.mlp.down", Form.TABLE, all_experts=True),
        Tensor(f"{_MLP}.experts.down_proj_bias", "layers.mlp.down_bias", Form.VECTOR, all_experts=True),
        *NORMS,
        NORM,
        HEAD,
    ),
    model={
        "norm": "rmsnorm", "activation": "clamped_swiglu", "attention_bias": True, "attention_sinks": True,
        "mlp_bias": True,
    },
    entries=(
        *GROUPED_SIZES,
        Same("head_dim", "head_dim", default=64),
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        TIED,
        Only("attention_bias", (True,)),
        Only("swiglu_alpha", (1.702,)),
        Only("swiglu_limit", (7.0,)),
    ),
    layer_entries=(
        Rope(base=150000.0, absent=_YARN),
        Windows(alternating, absent=128, always=True),
        RoutedExperts(("num_local_experts", "num_experts"), ("num_experts_per_tok", "experts_per_token")),
    ),
    unused=(*UNUSED, "initial_context_length"),
    quantizations=("mxfp4",),
)  # fmt: skip
