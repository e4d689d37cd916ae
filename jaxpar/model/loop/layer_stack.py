"""The stack of one kind of layers inside the step: reading and writing rows, wherever they are stored."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool

from jaxpar.config.kinds import ALIKE
from jaxpar.layers.context import TokenContext
from jaxpar.memory.streaming import on_host
from jaxpar.mesh.coded import is_coded_stack
from jaxpar.mesh.layer_order import LAYERS, PADDING, Chunk, Index, StackOrder, Ungathered, own_layers
from jaxpar.mesh.materialize import gather, is_code, row_to_storage, summed_early, to_accumulator, to_secondary
from jaxpar.mesh.parameters import Arrays, Nested, only
from jaxpar.mesh.placements import Placement, Placements, added_dim
from jaxpar.mesh.tracing import equations, traced
from jaxpar.mesh.wire.wire import Wire
from jaxpar.model.loop.layer_kind import Keep, LayerKind
from jaxpar.model.loop.parted import add_row, stored_row
from jaxpar.model.loop.stash import at, put
from jaxpar.model.loop.walk import Site


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

    def load(self, weights: Arrays | Ungathered, row: Index, on_host: bool = False, coded: bool = False) -> Arrays:
        """Weights of one row, from the stack in storage placement to compute placement; `coded` is whether its
        quantised matrices are codes."""
        if isinstance(weights, Ungathered):
            return self.gather(self.stored(weights, row))
        stored = stored_row(weights, row, self.kind.host_rows, on_host, self.placements.storage.dtype, coded)
        return self.gather(to_secondary(stored, self.placements, part=self._part) if on_host else stored)

    def stored(self, weights: Ungathered, row: Index) -> Arrays:
        """Weights of one row in storage placement, from that of the optimizer."""
        return row_to_storage(at(weights.master, row), self.placements, part=self._part)

    def gather(self, stored: Arrays) -> Arrays:
        """Weights of one layer from storage to compute placement."""
        return gather(stored, self.placements, part=self._part, unstacked=True)

    def load_any(self, weights: Arrays | Ungathered) -> Arrays:
        """`load` of a row, used only for its shapes."""
        stacks = [leaf for leaf in jax.tree.leaves(weights, is_leaf=is_coded_stack) if is_coded_stack(leaf)]
        coded = bool(stacks) and stacks[0].coded[0]
        return self.widened(self.load(weights, 0, on_host=self.kind.host_rows > 0, coded=coded))

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

    def taps(self, weights: Arrays, x: jax.Array, tokens: TokenContext) -> Arrays:
        """Zeros for what a split backward of a layer keeps."""
        return self.kind.derivative.zero_taps(self.load_any(weights), x, tokens)

    # ---- gradients

    def accumulate(
        self,
        gradients: Arrays,
        dw: Arrays,
        row: Index,
        number: jax.Array,
        counts: Any,
        on_host: bool = False,
        fresh: Bool[Array, ""] | bool = False,
    ) -> Arrays:
        """Add a layer's gradients (compute placement) to its row of `gradients` (gradient placement)."""
        add = lambda total, row: self._add(total, dw, row, number, counts)
        layouts = self._layout(self.placements.compute), self._layout(self.placements.gradient), self._wires
        reduce = partial(to_accumulator, dtype=self.placements.gradient.dtype, unstacked=True)
        return add_row(gradients, row, self.kind.host_rows, on_host, add, dw, reduce, layouts, fresh)

    def _add(self, gradients: Arrays, dw: Arrays, row: Index, number: jax.Array, counts: Any) -> Arrays:
        if self.order.padded:
            counts = counts & (number != PADDING)
        compute, gradient = self._layout(self.placements.compute), self._layout(self.placements.gradient)
        dtype = self.placements.gradient.dtype

        def add(total: Any, new: Any, compute: Any, gradient: Any, wire: Any) -> Any:
            if isinstance(new, dict):
                below = lambda name: (tree[name] for tree in (total, new, compute, gradient, wire))
                return total | {name: add(*below(name)) for name in new}
            assert isinstance(compute, PartitionSpec), "the layout of a weight"
            new = to_accumulator(new, compute, gradient, wire, dtype=dtype, unstacked=True)
            with jax.named_scope("gradients"):
                new = new if counts is True else jnp.where(counts, new, 0)
                return put(total, at(total, row) + new, row)

        return add(gradients, dw, compute, gradient, self._wires)

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
        allowed. Programs with permutes run in every row (see `permutes`), as do those that pass on host memory, which
        XLA would not move through a branch. On a GPU the host waits for what a branch depends on, so rows that hold a
        layer in every chunk do not use this.
        """
        program = traced(act, carry)
        if permutes(program.closed.jaxpr) or any(map(on_host, jax.tree.leaves(carry))):
            return program(carry)
        return lax.cond(self.order.own(chunk)[row] != PADDING, program, lambda carry: carry, carry)

    def unless_padding(self, number: jax.Array, y: jax.Array, x: jax.Array | int) -> jax.Array:
        """`y`, or `x` in a row that only pads the stack."""
        return jnp.where(number != PADDING, y, x) if self.order.padded else y

    # ---- a site of a walk

    def site(
        self,
        key: Hashable,
        weights: Chunk,
        keep: Keep,
        padded: bool,
        step: Callable[[Arrays, Any, jax.Array, Any], Any],
        fetches: Callable[[jax.Array], Any],
        before: str,
        *,
        backward: bool,
    ) -> Site:
        """Rows of a chunk that take the same `step` with their weights; see `LayerLoop._walk`.

        `before` is the part of a layer before whose last product the next attention's weights must have arrived.
        """
        own = own_layers(weights.stack, self.name)

        def load(row: jax.Array) -> Arrays:
            return self.load(own, self.row(weights, row), keep.on_host, coded=keep.exact is False)

        def fetch(row: jax.Array) -> tuple[Arrays | None, Any]:
            """Gathered weights, if storage differs from compute placement, and what is fetched from host memory; or the
            weights as they are stored, where they come from elsewhere."""
            if isinstance(own, Ungathered):
                stored = self.stored(own, self.row(weights, row))
                return self.gather(stored), stored
            return load(row) if self.prefetches or keep.on_host else None, fetches(row)

        def run(fetched: tuple[Arrays | None, Any], row: jax.Array, carry: Any) -> Any:
            w, activations = fetched
            act = lambda carry: step(self.widened(load(row) if w is None else w), activations, row, carry)
            return self.left_out_of_padding(weights.chunk, row, act, carry) if padded else act(carry)

        bound = tied_to(before, backward=backward) if self.prefetches else None
        if bound is None:
            return Site(key, run, fetch)
        return Site(key, run, fetch, partial(_tied, *bound, host=backward and before == "attention"))

    @property
    def _part(self) -> tuple[str, ...]:
        return (LAYERS,) if self.name == ALIKE else (LAYERS, self.name)

    @property
    def _wires(self) -> Nested[Wire]:
        return own_layers(self.placements.wires[LAYERS], self.name)

    def _layout(self, role: Placement) -> Nested[PartitionSpec]:
        return own_layers(role.layout[LAYERS], self.name)


type _Fetched = tuple[Arrays, Any]


_LAST = {"attention": "output", "mlp": "down"}
"""The matrix of each part's last product."""


def tied_to(before: str, *, backward: bool) -> tuple[str, str] | None:
    """The part of a layer that the next attention's weights are tied to, and how names of its weights begin."""
    if not before:
        return None
    return before, _LAST[before] if backward or before == "attention" else ""


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


def permutes(program: Jaxpr) -> bool:
    """Whether a program has a collective permute, which XLA matches with an unrelated one if some ranks skip it."""
    return any(equation.primitive.name == "ppermute" for equation in equations(program))
