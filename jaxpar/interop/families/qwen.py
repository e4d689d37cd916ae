"""Qwen 2, 2.5, 3, 3-Next and 3.5."""

from __future__ import annotations

from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    FEED_FORWARD,
    GROUPED_SIZES,
    HEAD,
    NORM,
    NORM_EPSILON,
    NORMS,
    QK_NORMS,
    SILU,
    TENSORS,
    TIED,
)
from jaxpar.interop.mapping.expert_keys import EXPERTS, UNUSED, RoutedExperts
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.layer_keys import Windows, all_local, from_max_window_layers
from jaxpar.interop.mapping.linear_keys import LinearSizes, StateLayers
from jaxpar.interop.mapping.rope_keys import Rope

WINDOWS = Windows(from_max_window_layers, switch="use_sliding_window", beside=("max_window_layers",), absent=4096)

QWEN2 = Family(
    name="qwen2",
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    presets="Qwen2 and Qwen2.5, dense ones",
    tensors=TENSORS,
    model={"norm": "rmsnorm", "activation": "swiglu", "attention_bias": "qkv"},
    entries=(
        *GROUPED_SIZES,
        SILU,
        NORM_EPSILON,
        TIED,
        Only("use_mrope", (False,)),
    ),
    layer_entries=(Rope(), WINDOWS),
)

QWEN3 = Family(
    name="qwen3",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    presets="Qwen3, dense ones",
    tensors=(EMBEDDING, *ATTENTION, *QK_NORMS, *FEED_FORWARD, *NORMS, NORM, HEAD),
    model={"norm": "rmsnorm", "activation": "swiglu", "qk_norm": True},
    entries=(
        *GROUPED_SIZES,
        Same("head_dim", "head_dim", default=128),
        SILU,
        NORM_EPSILON,
        ATTENTION_BIAS,
        TIED,
    ),
    layer_entries=(Rope(), WINDOWS),
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    presets="Qwen3 with experts: 30B-A3B, 235B-A22B and Coder",
    tensors=(EMBEDDING, *ATTENTION, *QK_NORMS, *FEED_FORWARD, *EXPERTS, *NORMS, NORM, HEAD),
    model={"norm": "rmsnorm", "activation": "swiglu", "qk_norm": True},
    entries=(
        *GROUPED_SIZES,
        Same("head_dim", "head_dim", default=None),
        SILU,
        NORM_EPSILON,
        ATTENTION_BIAS,
        TIED,
    ),
    layer_entries=(
        Rope(),
        Windows(all_local, switch="use_sliding_window", typed=False, beside=("max_window_layers",), absent=4096),
        RoutedExperts(
            ("num_experts", "num_local_experts"), width="moe_intermediate_size", normalised="norm_topk_prob", dense=True
        ),
    ),
    unused=UNUSED,
)

_LINEAR = "model.layers.{layer}.linear_attn"
_STATE = tuple(f"layers.mixer.{name}" for name in ("query", "key", "value", "gate"))
SHARED = (
    *(
        Tensor(f"model.layers.{{layer}}.mlp.shared_expert.{name}_proj.weight", f"layers.mlp.shared_{name}")
        for name in ("gate", "up", "down")
    ),
    Tensor("model.layers.{layer}.mlp.shared_expert_gate.weight", "layers.mlp.shared_router"),
)
_HYBRID = (
    Tensor(
        "model.layers.{layer}.self_attn.q_proj.weight", "layers.attention.query layers.attention.gate", by_head=True
    ),
    *(line for line in ATTENTION if ".q_proj." not in line.name),
    *QK_NORMS,
    Tensor(f"{_LINEAR}.A_log", "layers.mixer.decay_rate", Form.VECTOR),
    Tensor(f"{_LINEAR}.dt_bias", "layers.mixer.decay_bias", Form.VECTOR),
    Tensor(f"{_LINEAR}.norm.weight", "layers.mixer.output_norm", Form.VECTOR),
    Tensor(f"{_LINEAR}.conv1d.weight", " ".join(f"{one}_taps" for one in _STATE[:3]), Form.TAPS),
    Tensor(f"{_LINEAR}.out_proj.weight", "layers.mixer.output"),
    *FEED_FORWARD,
    *EXPERTS,
    *SHARED,
    *NORMS,
    Tensor("model.layers.{layer}.input_layernorm.weight", "layers.mixer_norm.scale", Form.VECTOR),
    NORM,
    HEAD,
)
_HYBRID_MODEL = {
    "norm": "zero_centered_rmsnorm", "activation": "swiglu", "qk_norm": True, "attention_gate": True,
}  # fmt: skip
_HYBRID_ENTRIES = (
    *GROUPED_SIZES,
    Same("head_dim", "head_dim", default=256),
    SILU,
    NORM_EPSILON,
    Only("attention_bias", (False,)),
    Only("linear_conv_kernel_dim", (4,)),
    TIED,
)
_HYBRID_LAYERS = (
    Rope(partial=0.25, unused=("mrope_section", "mrope_interleaved")),
    StateLayers("gated_deltanet"),
    LinearSizes(
        {
            "heads": "linear_num_value_heads", "key_heads": "linear_num_key_heads", "key_dim": "linear_key_head_dim",
            "value_dim": "linear_value_head_dim",
        },
        {"heads": 32, "key_heads": 16, "key_dim": 128, "value_dim": 128},
    ),
)  # fmt: skip

QWEN3_NEXT = Family(
    name="qwen3_next",
    model_type="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    presets="Qwen3-Next 80B-A3B and Coder",
    tensors=(
        EMBEDDING,
        Tensor(f"{_LINEAR}.in_proj_qkvz.weight", " ".join(_STATE), by_key_head=True),
        Tensor(f"{_LINEAR}.in_proj_ba.weight", "layers.mixer.rate layers.mixer.decay", by_key_head=True),
        *_HYBRID,
    ),
    model=_HYBRID_MODEL,
    entries=_HYBRID_ENTRIES,
    layer_entries=(
        *_HYBRID_LAYERS,
        RoutedExperts(
            ("num_experts", "num_local_experts"), width="moe_intermediate_size", normalised="norm_topk_prob",
            absent=True, shared="shared_expert_intermediate_size", dense=True,
        ),
    ),
    unused=UNUSED,
    omitted=("mtp.",),
)  # fmt: skip
_QWEN3_5 = (
    EMBEDDING,
    Tensor(f"{_LINEAR}.in_proj_qkv.weight", " ".join(_STATE[:3])),
    Tensor(f"{_LINEAR}.in_proj_z.weight", "layers.mixer.gate"),
    Tensor(f"{_LINEAR}.in_proj_b.weight", "layers.mixer.rate"),
    Tensor(f"{_LINEAR}.in_proj_a.weight", "layers.mixer.decay"),
    *_HYBRID,
)
_QWEN3_5_UNUSED = ("attn_output_gate", "mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")

QWEN3_5 = Family(
    name="qwen3_5",
    model_type="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    presets="Qwen3.5, dense ones without their images",
    tensors=_QWEN3_5,
    model=_HYBRID_MODEL,
    entries=_HYBRID_ENTRIES,
    layer_entries=_HYBRID_LAYERS,
    unused=_QWEN3_5_UNUSED,
    omitted=("mtp.",),
)

QWEN3_5_MOE = Family(
    name="qwen3_5_moe",
    model_type="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    presets="Qwen3.5 with experts, without their images",
    tensors=_QWEN3_5,
    model=_HYBRID_MODEL,
    entries=tuple(one for one in _HYBRID_ENTRIES if "intermediate_size" not in one.keys),
    layer_entries=(
        *_HYBRID_LAYERS,
        RoutedExperts(
            ("num_experts", "num_local_experts"), width="moe_intermediate_size",
            shared="shared_expert_intermediate_size",
        ),
    ),
    unused=(*UNUSED, *_QWEN3_5_UNUSED, "intermediate_size"),
    omitted=("mtp.",),
)  # fmt: skip
