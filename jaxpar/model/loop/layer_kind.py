"""Layers of one kind: how one runs, what it reports, and what such layers keep between forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import Slot
from jaxpar.mesh.parameters import Arrays, Nested
from jaxpar.model.loop.layer_derivative import Apply, LayerDerivative, Policy


class Keep(NamedTuple):
    """What consecutive layers of a kind in a chunk keep between forward and backward."""

    layers: int
    """How many."""
    policy: Policy | None = None
    """Remat policy inside a layer, as for `jax.checkpoint`; None keeps every intermediate of autodiff."""
    offload_inputs: bool = False
    """Whether their inputs are offloaded to host memory."""
    on_host: bool = False
    """Whether their weights and gradients are in host memory; stacks are then `Parted`."""


@dataclass(frozen=True, eq=False)
class LayerKind:
    """Layers with one program and one stack of weights."""

    apply: Apply
    keeps: tuple[Keep, ...]
    """What the rows of a chunk keep, in row order."""
    linear: Callable[[Arrays, str, jax.Array], Any] | None = None
    """A layer's groups of matmuls: (weights, name, input) -> outputs. Needed if `matrices` is set."""
    matrices: Nested[bool] | None = None
    """Splits the backward: which weights (true or false, like a layer's weights) belong to the groups of `linear`, and
    have their gradients from `LayerLoop.weight_gradients`. None makes the backward whole."""
    reports: tuple[str, ...] = ()
    """Names of what a layer reports."""
    frozen: Nested[bool] | None = None
    """Which weights have no gradients; None gives all of them one."""

    @cached_property
    def derivative(self) -> LayerDerivative:
        """One layer and its pullbacks."""
        return LayerDerivative(self.apply, self.matrices, self.frozen)

    @property
    def firsts(self) -> list[int]:
        """For each of `keeps`, its first row in a chunk."""
        return list(accumulate((keep.layers for keep in self.keeps[:-1]), initial=0))

    @property
    def rows(self) -> int:
        """Rows of a chunk."""
        return sum(keep.layers for keep in self.keeps)

    @property
    def host_rows(self) -> int:
        """Number of layers of a chunk, counted from the first, whose weights and gradients are in host memory."""
        return sum(keep.layers for keep in self.keeps if keep.on_host)

    def keep_of(self, row: int) -> int:
        """Which of `keeps` a row of a chunk belongs to."""
        return next(place for place, end in enumerate(accumulate(k.layers for k in self.keeps)) if row < end)


def no_report(names: Sequence[str]) -> dict[str, Float[Array, ""]]:
    """The report of no layers."""
    return {name: vary(jnp.float32(0)) for name in names}


def split_keeps(keeps: Sequence[Keep], host_layers: int) -> tuple[Keep, ...]:
    """`keeps` with the weights of the first `host_layers` layers in host memory."""
    found: list[Keep] = []
    for keep in keeps:
        first = min(host_layers, keep.layers)
        host_layers -= first
        found += [
            part
            for part in (keep._replace(layers=first, on_host=True), keep._replace(layers=keep.layers - first))
            if part.layers
        ]
    return tuple(found)


def keeps_by_kind(slots: Sequence[Slot], keeps: Sequence[Keep]) -> dict[str, tuple[Keep, ...]]:
    """What the rows of each kind keep, from what the slots of a chunk keep; equal neighbours in a stack are joined."""
    each: Iterator[Keep] = (keep._replace(layers=1) for keep in keeps for _ in range(keep.layers))
    found: dict[str, list[Keep]] = {}
    for slot, keep in zip(slots, each, strict=True):
        own = found.setdefault(slot.kind, [])
        if own and own[-1]._replace(layers=1) == keep:
            own[-1] = keep._replace(layers=own[-1].layers + 1)
        else:
            own.append(keep)
    return {kind: tuple(own) for kind, own in found.items()}
