"""The stack of one kind of layers inside the step: reading and writing rows, wherever they are stored.

It is on the device, or the first rows are in the host's memory (`Parted`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import PyTree

from jaxpar.config.kinds import ALIKE
from jaxpar.layers.context import TokenContext
from jaxpar.memory.streaming import on_host, to_host
from jaxpar.mesh.coded import is_coded_stack
from jaxpar.mesh.layer_order import LAYERS, PADDING, Chunk, Index, Parted, StackOrder, Ungathered, own_layers
from jaxpar.mesh.materialize import gather, is_code, row_to_storage, summed_early, to_accumulator, to_secondary
from jaxpar.mesh.parameters import Arrays, Nested, only
from jaxpar.mesh.placements import Placement, Placements, added_dim
from jaxpar.mesh.tracing import permutes, traced
from jaxpar.mesh.wire.wire import Wire
from jaxpar.model.loop.layer_kind import LayerKind
from jaxpar.model.loop.stash import at, entry_on_device, in_order, put, stacked
from jaxpar.model.loop.walk import Site, Tie
from jaxpar.runtime.passes import Accumulator, Valid

type Stack = Any
"""`Nested` arrays [row, ...] on the device, `Parted` or `Ungathered`."""


class Step(NamedTuple):
    """The work of a walk in a row."""

    run: Callable[[Arrays, PyTree, jax.Array, PyTree], PyTree]
    """`(weights, what was fetched, row, carry) -> carry`."""
    fetch: Callable[[jax.Array], PyTree] = lambda row: None
    """`row -> what is in host memory for it`, moved to the device."""
    loads: bool = True
    """Whether it takes weights."""


@dataclass(frozen=True, eq=False)
class LayerStack:
    """Layers of one kind, [row, ...], on this rank."""

    name: str
    """Of the kind."""
    kind: LayerKind
    order: StackOrder
    placements: Placements

    @property
    def prefetches(self) -> bool:
        """Whether storage differs from compute placement, so that there is something to gather ahead."""
        roles = self._layout(self.placements.compute), self._layout(self.placements.storage)
        differ = lambda compute, storage: added_dim(compute, storage) is not None
        return any(jax.tree.leaves(jax.tree.map(differ, *roles)))

    def row(self, chunk: Chunk, row: Index) -> Index:
        """The index in the stack of a row of a chunk."""
        return chunk.place * self.order.rows_per_chunk + row

    # ---- weights

    def load(self, weights: Stack, row: Index, like: int = 0) -> Arrays:
        """Weights of one row, from the stack in storage placement to compute placement.

        `like` is a row of a chunk that is stored as this one is: in host memory or not, as codes or not.
        """
        if isinstance(weights, Ungathered):
            return self.gather(self.stored(weights.master, row))
        if not isinstance(weights, Parted):
            one = lambda leaf: leaf.row(row, leaf.coded[like]) if is_coded_stack(leaf) else at(leaf, row)
            return self.gather(jax.tree.map(one, weights, is_leaf=is_coded_stack))
        if like >= self.kind.host_rows:
            return self.gather(at(weights.device, row - self.kind.host_rows))
        dtype = self.placements.storage.dtype
        with jax.named_scope("stored_weights"):
            stored = jax.tree.map(lambda a: entry_on_device(a, row).astype(dtype), weights.host)
        return self.gather(to_secondary(stored, self.placements, part=self._part))

    def stored(self, master: Arrays, row: Index) -> Arrays:
        """Weights of one row in storage placement, from that of the optimizer."""
        return row_to_storage(at(master, row), self.placements, part=self._part)

    def room(self, master: Arrays) -> Arrays:
        """Buffers for all rows in storage placement; each is written before it is read."""
        return stacked((self.order.rows_per_chunk,), lambda master: self.stored(master, 0), master, written=True)

    def gather(self, stored: Arrays) -> Arrays:
        """Weights of one layer from storage to compute placement."""
        return gather(stored, self.placements, part=self._part, unstacked=True)

    def load_any(self, weights: Stack) -> Arrays:
        """`load` of a row, used only for its shapes."""
        return self.widened(self.load(weights, 0))

    def widened(self, weights: Arrays) -> Arrays:
        """Weights of a layer as it takes them, in the dtype of their gradients: codes in compute dtype, matrices of
        the kind's `wide` in that of gradient placement.

        What multiplies them converts them back, and XLA removes both conversions where both are in one loop.
        """
        dtype = jnp.dtype(self.placements.compute.dtype)
        weights = jax.tree.map(lambda w: w.astype(dtype) if is_code(w) else w, weights)
        if self.kind.wide is None:
            return weights
        accumulated = jnp.dtype(self.placements.gradient.dtype)
        return jax.tree.map(lambda w, wide: w.astype(accumulated) if wide else w, weights, self.kind.wide)

    def taps(self, slots: int, weights: Arrays, x: jax.Array, tokens: TokenContext) -> Arrays:
        """Zeros for what split backwards of a chunk leave, [slot, row, ...], given shapes."""
        taps = lambda weights, x, tokens: self.kind.derivative.zero_taps(self.load_any(weights), x, tokens)
        return stacked((slots, self.order.rows_per_chunk), taps, weights, x, tokens)

    # ---- gradients

    def accumulate(
        self, gradients: Stack, dw: Arrays, row: jax.Array, number: jax.Array, into: Accumulator, like: int = 0
    ) -> Stack:
        """Add a layer's gradients (compute placement) to its row of a chunk in `gradients` (gradient placement).

        `like` is as in `load`.
        """
        place, host_rows = self.row(into.chunk, row), self.kind.host_rows
        if not isinstance(gradients, Parted):
            return self._add(gradients, dw, place, number, into.valid)
        if like >= host_rows:
            return gradients._replace(device=self._add(gradients.device, dw, place - host_rows, number, into.valid))

        def send(total: jax.Array, new: jax.Array, *layouts: PyTree) -> jax.Array:
            new = to_accumulator(new, *layouts, dtype=self.placements.gradient.dtype, unstacked=True)
            with jax.named_scope("gradients"):
                if into.fresh is not True:
                    new = jnp.where(into.fresh, new, entry_on_device(total, place) + new)
                return put(total, to_host(in_order(new)), place)

        return gradients._replace(host=jax.tree.map(send, gradients.host, dw, *self._gradient_layouts))

    def _add(self, gradients: Arrays, dw: Arrays, row: Index, number: jax.Array, valid: Valid) -> Arrays:
        if self.order.padded:
            valid = valid & (number != PADDING)

        def add(total: PyTree, new: PyTree, *layouts: PyTree) -> PyTree:
            if isinstance(new, dict):
                return total | {name: add(*(tree[name] for tree in (total, new, *layouts))) for name in new}
            new = to_accumulator(new, *layouts, dtype=self.placements.gradient.dtype, unstacked=True)
            with jax.named_scope("gradients"):
                new = new if valid is True else jnp.where(valid, new, 0)
                return put(total, at(total, row) + new, row)

        return add(gradients, dw, *self._gradient_layouts)

    def with_next_summed(self, gradients: Arrays, dw: Arrays, row: Index) -> tuple[Arrays, Arrays]:
        """(`gradients` with the sums over ranks of the row after `row`, `dw`).

        That row is complete when the backward comes to `row`. The last row has none after it: another one is summed and
        left as it was, so that all rows are one loop. `dw` are the gradients of `row`. The sums are tied between those
        of the feed-forward and those of attention: XLA puts messages that nothing waits for at the end of a loop's
        turn, beside products with float32 results, of which it expects ten times the time that they take.
        """
        rows = self.order.rows_per_chunk
        if rows == 1:
            return gradients, dw
        after = (row + 1) % rows
        # What follows writes to the stack in place; without this barrier, XLA copies all of it.
        gradients, complete = lax.optimization_barrier((gradients, at(gradients, after)))
        complete, mlp = lax.optimization_barrier((complete, dw.get("mlp", {})))
        summed = summed_early(complete, self._wires)

        def one(total: jax.Array, new: jax.Array, old: jax.Array, wire: Wire) -> jax.Array:
            return put(total, jnp.where(after > 0, new, old), after) if wire.early else total

        gradients = jax.tree.map(one, gradients, summed, complete, only(self._wires, gradients))
        gradients, attention = lax.optimization_barrier((gradients, dw.get("attention", {})))
        return gradients, dw | {name: own for name, own in (("mlp", mlp), ("attention", attention)) if name in dw}

    def with_first_summed(self, gradients: Arrays) -> Arrays:
        """`gradients` with the sums over ranks of row 0, which the backward completes last."""
        summed = summed_early(at(gradients, 0), self._wires)
        keep = lambda total, new, wire: put(total, new, 0) if wire.early else total
        return jax.tree.map(keep, gradients, summed, only(self._wires, gradients))

    # ---- padding

    def left_out_of_padding[Carry](
        self, chunk: Index, row: jax.Array, act: Callable[[Carry], Carry], carry: Carry
    ) -> Carry:
        """`act(carry)`, or `carry` unchanged in a row that only pads the stack: a branch, so padding takes no time.

        Pipeline ranks may branch differently, but members of a group branch alike, so collectives within a group are
        allowed. Programs with permutes run in every row, as do those that pass on host memory, which XLA would not move
        through a branch. On a GPU the host waits for what a branch depends on, so rows that hold a layer in every chunk
        do not use this.
        """
        program = traced(act, carry)
        if permutes(program.closed.jaxpr) or any(map(on_host, jax.tree.leaves(carry))):
            return program(carry)
        return lax.cond(self.order.own(chunk)[row] != PADDING, program, lambda carry: carry, carry)

    def unless_padding(self, number: jax.Array, y: jax.Array, x: jax.Array | int) -> jax.Array:
        """`y`, or `x` in a row that only pads the stack."""
        return jnp.where(number != PADDING, y, x) if self.order.padded else y

    # ---- a site of a walk

    def site(self, key: Hashable, weights: Chunk, first: int, padded: bool, step: Step, tie: Tie | None) -> Site:
        """Rows of a chunk, from `first` on, that take the same `step` with their weights; see `LayerLoop._walk`."""
        own = own_layers(weights.stack, self.name)
        load = lambda row: self.load(own, self.row(weights, row), first)

        def fetch(row: jax.Array) -> tuple[Arrays | None, PyTree]:
            """Gathered weights, if storage differs from compute placement, and what is fetched from host memory; or the
            weights as they are stored, where they come from elsewhere."""
            if not step.loads:
                return None, step.fetch(row)
            if isinstance(own, Ungathered):
                stored = self.stored(own.master, self.row(weights, row))
                return self.gather(stored), stored
            return load(row) if self.prefetches or first < self.kind.host_rows else None, step.fetch(row)

        def run(fetched: tuple[Arrays | None, PyTree], row: jax.Array, carry: PyTree) -> PyTree:
            w, activations = fetched
            loaded = lambda: self.widened(load(row) if w is None else w) if step.loads else {}
            act = lambda carry: step.run(loaded(), activations, row, carry)
            return self.left_out_of_padding(weights.chunk, row, act, carry) if padded else act(carry)

        return Site(key, run, fetch, tie if self.prefetches else None)

    @property
    def _part(self) -> tuple[str, ...]:
        return (LAYERS,) if self.name == ALIKE else (LAYERS, self.name)

    @property
    def _wires(self) -> Nested[Wire]:
        return own_layers(self.placements.wires[LAYERS], self.name)

    @property
    def _gradient_layouts(self) -> tuple[Nested[PartitionSpec], Nested[PartitionSpec], Nested[Wire]]:
        """The layouts of weights in compute and in gradient placement, and how their gradients travel."""
        return self._layout(self.placements.compute), self._layout(self.placements.gradient), self._wires

    def _layout(self, role: Placement) -> Nested[PartitionSpec]:
        return own_layers(role.layout[LAYERS], self.name)


type _Fetched = tuple[Arrays, PyTree]


def tie_to(before: str, *, backward: bool) -> Tie | None:
    """Ties the next attention's weights to those of a part of a layer (attention, mlp), `before` whose products they
    must have arrived: to its last matrix alone, or in a forward to all of a feed-forward."""
    if not before:
        return None
    last = {"attention": "output", "mlp": "down"}[before]
    names = last if backward or before == "attention" else ""
    return partial(_tied, before, names, host=backward and before == "attention")


def _tied(part: str, names: str, coming: _Fetched, own: _Fetched, *, host: bool) -> tuple[_Fetched, _Fetched]:
    """What is `coming` for the next layer and a layer's `own`: weights of a part of the latter, all whose names begin
    with `names`, are there when the former's attention has its weights, and with `host` also what the former gets from
    the host. XLA takes such a copy for instant, and issues it just before what reads it. In the middle of a backward it
    has products beside it; a layer may begin with its feed-forward's last matrix, before which it would have none."""
    (after, others), (now, rest) = coming, own
    late = {name: weight for name, weight in now[part].items() if name.startswith(names)}
    arrived, late = lax.optimization_barrier(((after["attention"], others if host else None), late))
    attention, others = arrived[0], arrived[1] if host else others
    return ({**after, "attention": attention}, others), ({**now, part: {**now[part], **late}}, rest)
