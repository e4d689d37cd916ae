"""Bytes that a layer keeps for its backward, as the time model needs them for copies to the host."""

from __future__ import annotations

from collections.abc import Collection

from jaxpar.cost.layer_case import LayerCase
from jaxpar.memory.closed_forms import CLOSED_FORMS
from jaxpar.memory.layer_shape import activation_bytes
from jaxpar.planner.layout import Remat

type Runs = tuple[tuple[int, tuple[tuple[str, str], ...]], ...]


def kept_bytes(case: LayerCase, remat: Remat) -> float:
    """Bytes of one microbatch, averaged over the layers."""
    return CLOSED_FORMS[remat](case.shape) if isinstance(remat, str) else _bytes(case, remat, ("save", "offload"))


def copied_bytes(case: LayerCase, remat: Remat, fraction: float) -> float:
    """The same of what goes to the host's memory: activations that `remat` offloads, or else a `fraction` of what is
    kept. Where a run asks for a fraction, its map names the activations that make it up, and they count."""
    named = 0.0 if isinstance(remat, str) else _bytes(case, remat, ("offload",))
    return named or fraction * kept_bytes(case, remat)


def _bytes(case: LayerCase, remat: Runs, treatments: Collection[str]) -> float:
    """Bytes of the activations with one of these treatments, averaged over the layers."""
    sizes = activation_bytes(case.shape)
    layers = sum(count for count, _ in remat)
    own = lambda runs: sum(sizes[name] for name, treatment in runs if treatment in treatments and name in sizes)
    return sum(count * own(runs) for count, runs in remat) / layers
