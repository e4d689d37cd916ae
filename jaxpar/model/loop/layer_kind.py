"""Layers of one kind: how one runs, what it reports, and what such layers keep between forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import NamedTuple

import jax

from jaxpar.mesh.layer_order import Slot
from jaxpar.mesh.parameters import Arrays, Nested
from jaxpar.model.loop.layer_derivative import Apply, LayerDerivative, Policy
from jaxpar.runtime.observed import ZerosObserved
from jaxpar.runtime.passes import Context

type Linear = Callable[[Arrays, str, jax.Array, jax.Array, Context], Arrays]
"""(weights, name of a group, its input, layer's number, tokens) -> outputs."""


class Keep(NamedTuple):
    """What consecutive layers of a kind in a chunk keep between forward and backward."""

    layers: int
    """How many."""
    policy: Policy | None = None
    """Remat policy inside a layer, as for `jax.checkpoint`; None keeps every intermediate of autodiff."""
    offload_inputs: bool = False
    """Whether their inputs are offloaded to host memory."""
    variant: Hashable = None
    """The program among the kind's `variants` that runs them; None for the kind itself."""


@dataclass(frozen=True, eq=False)
class LayerKind:
    """Layers with one program and one stack of weights."""

    apply: Apply
    keeps: tuple[Keep, ...]
    """What the rows of a chunk keep, in row order."""
    linear: Linear | None = None
    """A layer's groups of matmuls. Needed if `matrices` is set."""
    matrices: Nested[bool] | None = None
    """Splits the backward: which weights (true or false, like a layer's weights) belong to the groups of `linear`, and
    have their gradients from `LayerLoop.weight_gradients`. None makes the backward whole."""
    reports: tuple[str, ...] = ()
    """Names of what a layer reports."""
    frozen: Nested[bool] | None = None
    """Which weights have no gradients; None gives all of them one."""
    zeros_observed: ZerosObserved | None = None
    """Zeros that `apply` takes for statistics of its backward; None if it collects none."""
    blocks: tuple[tuple[str, str], ...] = ()
    """The name of each block among a layer's weights, and that of its last matrix."""
    variants: Mapping[Hashable, LayerKind] = field(default_factory=dict)
    """Other programs over the same stack of weights, by `Keep.variant`: layers whose matmuls are quantised."""

    def of(self, keep: Keep) -> LayerKind:
        """The program of layers that keep this."""
        return self if keep.variant is None else self.variants[keep.variant]

    @cached_property
    def derivative(self) -> LayerDerivative:
        """One layer and its pullbacks."""
        return LayerDerivative(self.apply, self.matrices, self.frozen, self.zeros_observed)

    @property
    def firsts(self) -> list[int]:
        """For each of `keeps`, its first row in a chunk."""
        return list(accumulate((keep.layers for keep in self.keeps[:-1]), initial=0))

    def keep_of(self, row: int) -> int:
        """Which of `keeps` a row of a chunk belongs to."""
        return next(place for place, end in enumerate(accumulate(k.layers for k in self.keeps)) if row < end)


def keeps_by_kind(
    slots: Sequence[Slot], keeps: Iterable[Keep], variants: Mapping[str, Sequence[Hashable]]
) -> dict[str, tuple[Keep, ...]]:
    """Saved values of the rows of each kind, from those of a chunk's slots; equal neighbours in a stack are joined.

    `variants` has those of each kind's rows.
    """
    each = (keep._replace(layers=1) for keep in keeps for _ in range(keep.layers))
    rows: dict[str, list[Keep]] = {}
    for slot, keep in zip(slots, each, strict=True):
        rows.setdefault(slot.kind, []).append(keep._replace(variant=variants[slot.kind][slot.row]))
    return {
        kind: tuple(keep._replace(layers=len(list(same))) for keep, same in groupby(own)) for kind, own in rows.items()
    }
