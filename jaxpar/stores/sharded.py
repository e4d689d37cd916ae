"""Weights on the device in storage placement: gathered at the entry of a layer, where they are shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import PyTree

from jaxpar.memory.buffers import at, put
from jaxpar.mesh.layer_order import LAYERS, Index, layers_path, own_layers
from jaxpar.mesh.materialize import gather, is_code, to_accumulator
from jaxpar.mesh.parameters import Arrays, Nested
from jaxpar.mesh.placements import Placement, Placements, added_dim
from jaxpar.mesh.quantized.transport import Transport
from jaxpar.runtime.passes import Accumulator
from jaxpar.runtime.store import Stack


@dataclass(frozen=True, eq=False)
class Sharded:
    """A `WeightStore` of the layers of a kind, in storage and gradient placement."""

    kind: str
    placements: Placements
    wide: Nested[bool] | None = None
    """The weights that a layer takes in the dtype of their gradients, so that these leave its matmuls unrounded; None
    for none."""
    blocks: tuple[str, ...] = ()
    """The names of a layer's blocks, in their order."""

    @property
    def ahead(self) -> bool:
        """Whether storage differs from compute placement."""
        roles = self._layout(self.placements.compute), self._layout(self.placements.storage)
        differ = lambda compute, storage: added_dim(compute, storage) is not None
        return any(jax.tree.leaves(jax.tree.map(differ, *roles)))

    def fetch(self, weights: Stack, row: Index, like: int) -> tuple[Arrays, PyTree]:
        return self.gathered(self._stored(weights, row, like)), None

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

    def room(self, weights: Stack) -> Stack | None:
        return None

    def keep(self, rows: Stack | None, fetched: PyTree, row: Index) -> Stack | None:
        return rows

    def again(self, weights: Stack, x: jax.Array) -> tuple[Stack, jax.Array]:
        return weights, x

    def add(self, gradients: Stack, new: Arrays, row: Index, into: Accumulator) -> Stack:
        def add(total: PyTree, new: PyTree, *layouts: PyTree) -> PyTree:
            if isinstance(new, dict):
                return total | {name: add(*(tree[name] for tree in (total, new, *layouts))) for name in new}
            new = self.accumulated(new, *layouts)
            with jax.named_scope("gradients"):
                new = new if into.valid is True else jnp.where(into.valid, new, 0)
                return put(total, at(total, row) + new, row)

        return add(gradients, new, *self.gradient_layouts)

    def finish(self, gradients: Stack) -> Stack:
        return gradients

    # ---- for other stores

    def _stored(self, weights: Stack, row: Index, like: int) -> Arrays:
        """The weights of a row in storage placement."""
        del like
        return at(weights, row)

    def gathered(self, stored: Arrays) -> Arrays:
        """Weights of one layer from storage to compute placement."""
        return gather(stored, self.placements, part=layers_path(self.kind), unstacked=True)

    def accumulated(self, new: jax.Array, *layouts: Any) -> jax.Array:
        """The gradient of one weight from compute to gradient placement."""
        return to_accumulator(new, *layouts, dtype=self.placements.gradient.dtype, unstacked=True)

    @property
    def transports(self) -> Nested[Transport]:
        """How the weights and their gradients travel."""
        return own_layers(self.placements.transports[LAYERS], self.kind)

    @property
    def gradient_layouts(self) -> tuple[Nested[PartitionSpec], Nested[PartitionSpec], Nested[Transport]]:
        """The layouts of weights in compute and in gradient placement, and how their gradients travel."""
        return self._layout(self.placements.compute), self._layout(self.placements.gradient), self.transports

    def _layout(self, role: Placement) -> Nested[PartitionSpec]:
        return own_layers(role.layout[LAYERS], self.kind)
