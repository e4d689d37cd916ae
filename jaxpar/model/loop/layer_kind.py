"""Layers of one kind: how one runs, what it reports, and what such layers keep between forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.layers.context import TokenContext
from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import Slot
from jaxpar.mesh.parameters import Arrays, Nested
from jaxpar.model.loop.layer_derivative import Apply, LayerDerivative, Policy
from jaxpar.runtime.observed import ZerosObserved

type Linear = Callable[[Arrays, str, jax.Array, jax.Array, TokenContext], Any]
"""(weights, name of a group, its input, layer's number, tokens) -> outputs."""


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
    exact: bool | None = True
    """Whether their matmuls are not quantised; None if that depends on the chunk."""


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
    wide: Nested[bool] | None = None
    """Which weights `apply` takes in the dtype of their gradients, so that these leave its matmuls unrounded; None for
    none."""
    zeros_observed: ZerosObserved | None = None
    """Zeros that `apply` takes for statistics of its backward; None if it collects none."""
    quantised: Mapping[bool | None, LayerKind] = field(default_factory=dict)
    """By `Keep.exact`, the same for layers whose matmuls are quantised."""

    def of(self, keep: Keep) -> LayerKind:
        """The program of layers that keep this."""
        return self.quantised.get(keep.exact, self)

    @cached_property
    def derivative(self) -> LayerDerivative:
        """One layer and its pullbacks."""
        return LayerDerivative(self.apply, self.matrices, self.frozen, self.zeros_observed)

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


def split_exact(keeps: Sequence[Keep], exact: Sequence[bool | None]) -> tuple[Keep, ...]:
    """`keeps` with `Keep.exact` of each row; neighbours that differ in it are apart."""
    rows = (keep._replace(layers=1) for keep in keeps for _ in range(keep.layers))
    return _joined(keep._replace(exact=own) for keep, own in zip(rows, exact, strict=True))


def keeps_by_kind(slots: Sequence[Slot], keeps: Sequence[Keep]) -> dict[str, tuple[Keep, ...]]:
    """What the rows of each kind keep, from what the slots of a chunk keep; equal neighbours in a stack are joined."""
    each: Iterator[Keep] = (keep._replace(layers=1) for keep in keeps for _ in range(keep.layers))
    found: dict[str, list[Keep]] = {}
    for slot, keep in zip(slots, each, strict=True):
        found.setdefault(slot.kind, []).append(keep)
    return {kind: _joined(own) for kind, own in found.items()}


def _joined(rows: Iterable[Keep]) -> tuple[Keep, ...]:
    """Of one layer each, equal neighbours joined."""
    found: list[Keep] = []
    for keep in rows:
        if found and found[-1]._replace(layers=1) == keep:
            found[-1] = keep._replace(layers=found[-1].layers + 1)
        else:
            found.append(keep)
    return tuple(found)
