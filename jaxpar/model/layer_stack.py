"""The stack of one kind of layers inside the step: rows in and out of it, wherever they rest."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool

from jaxpar.config.kinds import ALIKE
from jaxpar.layers.context import TokenContext
from jaxpar.mesh.layer_order import LAYERS, PADDING, Chunk, Index, Parted, StackOrder, own_layers
from jaxpar.mesh.materialize import gather, sink_gradient
from jaxpar.mesh.parameters import Tree
from jaxpar.mesh.placements import Placement, Placements, added_dim
from jaxpar.mesh.tracing import equations, traced
from jaxpar.model.layer_kind import Keep, LayerKind
from jaxpar.model.stash import at, in_order, on_host, put, taken, to_host
from jaxpar.model.walk import Site


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
        """Where a row of a chunk lies in the stack."""
        return chunk.place * self.order.rows_per_chunk + row

    # ---- weights

    def load(self, weights: Tree, row: Index, away: bool = False) -> Tree:
        """Weights of one row, from the stack in storage placement to compute placement; `away` from host memory."""
        part = (LAYERS,) if self.name == ALIKE else (LAYERS, self.name)
        return gather(self._stored(weights, row, away), self.placements, part=part, unstacked=True)

    def load_any(self, weights: Tree) -> Tree:
        """`load` of a row for the sake of its shapes."""
        return self.load(weights, 0, away=self.kind.away > 0)

    def taps(self, weights: Tree, x: jax.Array, tokens: TokenContext) -> Tree:
        """Zeros for what a split backward of a layer keeps."""
        return self.kind.derivative.zero_taps(self.load_any(weights), x, tokens)

    def _stored(self, weights: Tree, row: Index, away: bool) -> Tree:
        if not isinstance(weights, Parted):
            return at(weights, row)
        if not away:
            return at(weights.device, row - self.kind.away)
        with jax.named_scope("stored_weights"):
            return jax.tree.map(lambda a: taken(a, row).astype(self.placements.storage.dtype), weights.host)

    # ---- gradients

    def accumulate(self, gradients: Tree, dw: Tree, row: Index, number: jax.Array, counts: Any) -> Tree:
        """Add a layer's gradients (compute placement) to its row of `gradients` (gradient placement)."""
        if self.order.padded:
            counts = counts & (number != PADDING)
        compute, gradient = self._layout(self.placements.compute), self._layout(self.placements.gradient)
        dtype = self.placements.gradient.dtype

        def add(total: Any, new: Any, compute: Any, gradient: Any) -> Any:
            if isinstance(new, dict):
                return total | {name: add(total[name], new[name], compute[name], gradient[name]) for name in new}
            assert isinstance(compute, PartitionSpec), "the layout of a weight"
            new = sink_gradient(new, compute, gradient, dtype=dtype, unstacked=True)
            with jax.named_scope("gradients"):
                new = new if counts is True else jnp.where(counts, new, 0)
                return put(total, at(total, row) + new, row)

        return add(gradients, dw, compute, gradient)

    def accumulate_anywhere(
        self, gradients: Tree, dw: Tree, row: Index, number: jax.Array, counts: Any, keep: Keep, fresh: Any
    ) -> Tree:
        """`accumulate`, of layers whose gradients may rest in host memory."""
        if keep.away:
            return gradients._replace(host=self._send(gradients.host, dw, row, fresh))
        if isinstance(gradients, Parted):
            device = self.accumulate(gradients.device, dw, row - self.kind.away, number, counts)
            return gradients._replace(device=device)
        return self.accumulate(gradients, dw, row, number, counts)

    def _send(self, gradients: Tree, dw: Tree, row: Index, fresh: Bool[Array, ""] | bool) -> Tree:
        """Put a layer's gradients (compute placement), with those of other microbatches, into host memory."""
        compute, gradient = self._layout(self.placements.compute), self._layout(self.placements.gradient)
        dtype = self.placements.gradient.dtype

        def send(total: jax.Array, new: jax.Array, compute: PartitionSpec, gradient: PartitionSpec) -> jax.Array:
            new = sink_gradient(new, compute, gradient, dtype=dtype, unstacked=True)
            with jax.named_scope("gradients"):
                if fresh is not True:
                    new = jnp.where(fresh, new, taken(total, row) + new)
                return put(total, to_host(in_order(new)), row)

        return jax.tree.map(send, gradients, dw, compute, gradient)

    # ---- padding

    def left_out_of_padding[Carry](
        self, chunk: Index, row: jax.Array, act: Callable[[Carry], Carry], carry: Carry
    ) -> Carry:
        """`act(carry)`, and `carry` as it is in a row that only pads the stack: a branch, so that it takes no time.

        Ranks of a pipeline branch apart, and members of a group together, so groups may send each other what they
        like. What permutes is run in every row (see `permutes`), and so is what passes host memory on, which XLA would
        not move through a branch. On a GPU the host waits for what a branch depends on, so rows that hold a layer in
        every chunk do not come here.
        """
        program = traced(act, carry)
        if permutes(program.closed.jaxpr) or any(map(on_host, jax.tree.leaves(carry))):
            return program(carry)
        return lax.cond(self.order.own(chunk)[row] != PADDING, program, lambda carry: carry, carry)

    def unless_padding(self, number: jax.Array, y: jax.Array, x: jax.Array | int) -> jax.Array:
        """`y`, but `x` from a row that only pads the stack."""
        return jnp.where(number != PADDING, y, x) if self.order.padded else y

    # ---- a site of a walk

    def site(
        self,
        key: Hashable,
        weights: Chunk,
        keep: Keep,
        padded: bool,
        step: Callable[[Tree, Any, jax.Array, Any], Any],
        brings: Callable[[jax.Array], Any],
    ) -> Site:
        """Rows of a chunk that take the same `step` with their weights; see `LayerLoop._walk`."""
        own = own_layers(weights.stack, self.name)

        def load(row: jax.Array) -> Tree:
            return self.load(own, self.row(weights, row), keep.away)

        def fetch(row: jax.Array) -> tuple[Tree | None, Any]:
            """Gathered weights, where storage differs from compute placement, and what comes from host memory."""
            return load(row) if self.prefetches or keep.away else None, brings(row)

        def run(fetched: tuple[Tree | None, Any], row: jax.Array, carry: Any) -> Any:
            w, brought = fetched
            act = lambda carry: step(load(row) if w is None else w, brought, row, carry)
            return self.left_out_of_padding(weights.chunk, row, act, carry) if padded else act(carry)

        return Site(key, run, fetch)

    def _layout(self, role: Placement) -> Tree:
        return own_layers(role.layout[LAYERS], self.name)


def permutes(program: Jaxpr) -> bool:
    """Whether a program has a collective permute, which XLA matches with an unrelated one where some ranks leave it
    out."""
    return any(equation.primitive.name == "ppermute" for equation in equations(program))
