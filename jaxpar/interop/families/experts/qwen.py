"""Qwen 1.5 and 2 with experts."""

from __future__ import annotations

from jaxpar.interop.families.llama import (
    ATTENTION,
    EMBEDDING,
    FEED_FORWARD,
    GROUPED_SIZES,
    HEAD,
    NORM,
    NORM_EPSILON,
    NORMS,
    SILU,
    TIED,
)
from jaxpar.interop.families.qwen import SHARED
from jaxpar.interop.mapping.expert_keys import EXPERTS, UNUSED, RoutedExperts
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import HFConfig, QkvBias
from jaxpar.interop.mapping.layer_keys import GLOBAL, Windows, alternating, from_max_window_layers
from jaxpar.interop.mapping.rope_keys import Rope


def _windows(hf_config: HFConfig, layers: int) -> list[str]:
    """Types of layers: every other one before number `max_window_layers`, beginning with the window."""
    behind = from_max_window_layers(hf_config, layers)
    pairs = zip(alternating(hf_config, layers), behind, strict=True)
    return [one if later == GLOBAL else GLOBAL for one, later in pairs]


QWEN2_MOE = Family(
    name="qwen2_moe",
    model_type="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    presets="Qwen1.5-MoE-A2.7B and Qwen2-57B-A14B",
    tensors=(EMBEDDING, *ATTENTION, *FEED_FORWARD, *EXPERTS, *SHARED, *NORMS, NORM, HEAD),
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(*GROUPED_SIZES, SILU, NORM_EPSILON, QkvBias("qkv_bias", default=True), TIED),
    layer_entries=(
        Rope(),
        Windows(_windows, switch="use_sliding_window", beside=("max_window_layers",), absent=4096),
        RoutedExperts(
            ("num_experts", "num_local_experts"), width="moe_intermediate_size", normalised="norm_topk_prob",
            shared="shared_expert_intermediate_size", dense=True,
        ),
    ),
    unused=UNUSED,
)  # fmt: skip
