"""Bytes that a layer keeps for its backward, as the time model needs them for copies to the host."""

from __future__ import annotations

from collections.abc import Mapping

from jaxpar.memory.layer_shape import LayerShape, activation_bytes
from jaxpar.planner.time_layer import ALL, LayerCase

DROPPED: Mapping[str, frozenset[str]] = {
    "none": frozenset(),
    "gemm_last": frozenset({"attention_input", "mlp_input", "mlp_activated", "mlp_hidden"}),
    "selective": frozenset({"attention_output", "attention_lse"}),
    "full": ALL,
}


def kept_bytes(case: LayerCase, remat: str | tuple[tuple[int, tuple[tuple[str, str], ...]], ...]) -> float:
    """Of one microbatch, on average over the layers."""
    shape = LayerShape(
        case.rows, case.sequence, case.embed, case.heads, case.kv_heads, case.head_dim, case.mlp, case.gated,
        context=case.context, tensor=case.tensor, window=case.window, item_bytes=case.item,
    )  # fmt: skip
    sizes = activation_bytes(shape)
    if isinstance(remat, str):
        dropped = DROPPED[remat]
        return sizes["layer_input"] if dropped == ALL else sum(s for n, s in sizes.items() if n not in dropped)
    layers = sum(count for count, _ in remat)
    kept = lambda runs: sum(sizes[name] for name, treatment in runs if treatment != "recompute" and name in sizes)
    return sum(count * kept(runs) for count, runs in remat) / layers
