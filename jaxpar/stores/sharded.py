"""Weights on the device in storage placement: gathered at the entry of a layer, where they are shards."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxpar.memory.buffers import entry_at, put
from jaxpar.mesh.layer_order import LAYERS, Index
from jaxpar.mesh.materialize import gather, is_code, to_accumulators
from jaxpar.mesh.parameters import Arrays, Nested, merge, subtree_like
from jaxpar.mesh.placements import Placements, WeightPlacement, added_dim
from jaxpar.mesh.quantized_stack import is_quantized_stack
from jaxpar.runtime.passes import Accumulator, Stack


@dataclass(frozen=True, eq=False)
class Sharded:
    """A `WeightStore` of the layers of a kind, in storage and gradient placement."""

    kind: str
    placements: Placements
    wide: Nested[bool] | None = None
    """The weights that a layer takes in the dtype of their gradients, so that these leave its matmuls unrounded; None
    for none."""

    @property
    def ahead(self) -> bool:
        """Whether storage differs from compute placement."""
        placed: list[WeightPlacement] = jax.tree.leaves(self.placements.for_part((LAYERS, self.kind)))
        return any(added_dim(weight.compute, weight.storage) for weight in placed)

    def fetch(self, weights: Stack, row: Index, like: int) -> Arrays:
        return gather(self._stored(weights, row, like), self.placements, part=(LAYERS, self.kind), unstacked=True)

    def operands(self, fetched: Arrays) -> Arrays:
        """Codes in compute dtype, and the `wide` in that of gradient placement.

        What multiplies them converts them back, and XLA removes both conversions where both are in one loop.
        """
        dtype = jnp.dtype(self.placements.compute.dtype)
        weights = jax.tree.map(lambda w: w.astype(dtype) if is_code(w) else w, fetched)
        if self.wide is None:
            return weights
        accumulated = jnp.dtype(self.placements.gradient.dtype)
        return jax.tree.map(lambda w, wide: w.astype(accumulated) if wide else w, weights, self.wide)

    def again(self, weights: Stack, x: jax.Array) -> tuple[Stack, jax.Array]:
        return weights, x

    def add(self, gradients: Stack, new: Arrays, row: Index, into: Accumulator) -> Stack:
        def add(total: jax.Array, new: jax.Array) -> jax.Array:
            with jax.named_scope("gradients"):
                return put(
                    total, entry_at(total, row) + (new if into.valid is True else jnp.where(into.valid, new, 0)), row
                )

        return merge(gradients, jax.tree.map(add, subtree_like(gradients, new), self._accumulated(new)))

    # ---- for other stores

    def _stored(self, weights: Stack, row: Index, like: int) -> Arrays:
        """The weights of a row in storage placement; `like` as in `fetch`."""
        one = lambda leaf: leaf.row(row, leaf.is_quantized[like]) if is_quantized_stack(leaf) else entry_at(leaf, row)
        return jax.tree.map(one, weights, is_leaf=is_quantized_stack)

    def _accumulated(self, new: Arrays) -> Arrays:
        """Gradients of weights of one layer from compute to gradient placement."""
        return to_accumulators(new, self.placements, part=(LAYERS, self.kind), unstacked=True)
