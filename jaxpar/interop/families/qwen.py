"""Qwen 2, 2.5 and 3."""

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
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.layer_keys import Windows, all_local, from_max_window_layers
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
