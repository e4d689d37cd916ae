"""Bytes that a layer keeps for its backward, as the time model needs them for copies to the host."""

from __future__ import annotations

from jaxpar.cost.layer_case import LayerCase
from jaxpar.memory.closed_forms import CLOSED_FORMS
from jaxpar.memory.layer_shape import activation_bytes


def kept_bytes(case: LayerCase, remat: str | tuple[tuple[int, tuple[tuple[str, str], ...]], ...]) -> float:
    """Bytes of one microbatch, averaged over the layers."""
    if isinstance(remat, str):
        return CLOSED_FORMS[remat](case.shape)
    sizes = activation_bytes(case.shape)
    layers = sum(count for count, _ in remat)
    kept = lambda runs: sum(sizes[name] for name, treatment in runs if treatment != "recompute" and name in sizes)
    return sum(count * kept(runs) for count, runs in remat) / layers
