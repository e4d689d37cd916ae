"""Mixtral: experts in every layer, each with tensors of its own."""

from __future__ import annotations

from jaxpar.interop.families.llama import (
    ATTENTION,
    EMBEDDING,
    GROUPED_SIZES,
    HEAD,
    HEAD_DIM,
    NORM,
    NORMS,
    SILU,
    TIED,
)
from jaxpar.interop.mapping.expert_keys import UNUSED, RoutedExperts
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.keys import Same
from jaxpar.interop.mapping.layer_keys import Windows, all_local
from jaxpar.interop.mapping.rope_keys import Rope

_EXPERTS = "model.layers.{layer}.block_sparse_moe"
EXPERTS = (
    Tensor(f"{_EXPERTS}.gate.weight", "layers.mlp.router"),
    Tensor(f"{_EXPERTS}.experts.{{expert}}.w1.weight", "layers.mlp.gate"),
    Tensor(f"{_EXPERTS}.experts.{{expert}}.w2.weight", "layers.mlp.down"),
    Tensor(f"{_EXPERTS}.experts.{{expert}}.w3.weight", "layers.mlp.up"),
)

MIXTRAL = Family(
    name="mixtral",
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    presets="Mixtral 8x7B and 8x22B",
    tensors=(
        EMBEDDING,
        *ATTENTION,
        *EXPERTS,
        *NORMS,
        NORM,
        HEAD,
    ),
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(*GROUPED_SIZES, HEAD_DIM, SILU, Same("rms_norm_eps", "norm_epsilon", default=1e-5), TIED),
    layer_entries=(
        Rope(base=1000000.0),
        Windows(all_local, typed=False),
        RoutedExperts(("num_local_experts", "num_experts")),
    ),
    unused=(*UNUSED, "router_jitter_noise"),
)
