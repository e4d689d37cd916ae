"""Chunks of layers that are gathered whole, once for all microbatches, and whose gradients are reduced once.

Breadth-first pipelines (arXiv:2211.05953) run all microbatches through a chunk before the next. Under ZeRO-3 a chunk's
weights are then gathered once forward and once backward per batch (the last chunk's once for both), not once per
microbatch, and its gradients are reduced once. The price is memory: the chunks in use, and their gradients, are in
compute placement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.materialize import gather, to_accumulators
from jaxpar.mesh.parameters import Arrays
from jaxpar.mesh.placements import Placements
from jaxpar.model.loop.layer_loop import LayerLoop
from jaxpar.model.loop.layer_stack import LayerStack


@dataclass(frozen=True, eq=False)
class GatheredChunks:
    """Slots of chunks in compute placement, for the layers of `source`."""

    source: LayerLoop
    loop: LayerLoop
    """The same layers over weights that are already in compute placement, and gradients that stay in it."""
    placements: Placements
    """The placements of the weights of `source`."""

    def zeros(self, layers: Arrays, slots: int, *, gradients: bool = False) -> Arrays:
        """Zeros for `slots` chunks of `layers` (storage placement), or for their `gradients`."""

        def zeros(stack: LayerStack, weights: Arrays) -> Arrays:
            like = jax.eval_shape(lambda weights: stack.store.fetch(weights, 0, 0), weights)
            dtypes = jax.tree.map(lambda leaf: leaf.dtype, like)
            if gradients:
                like = stack.program.halves(like)[0]
                gradient, placed = self.placements.gradient.dtype, self.placements.for_part((LAYERS, stack.name), like)
                dtypes = jax.tree.map(lambda weight: weight.dtype(gradient), placed)
            rows = slots * stack.order.rows_per_chunk
            return jax.tree.map(lambda leaf, dtype: vary(jnp.zeros((rows, *leaf.shape), dtype)), like, dtypes)

        return self.source.map_stacks(zeros, layers)

    def load(self, chunks: Arrays, slot: int, layers: Arrays, chunk: int, after: jax.Array) -> Arrays:
        """`chunks` with a chunk of `layers` gathered into `slot`, not before `after` is computed.

        Otherwise the compiler would merge the second gather of a chunk with the first, and keep its result until then.
        Bytes: `gather_weight` of each sharded weight.
        """
        part = self.source.map_stacks(lambda stack, leaf: _chunk(stack, leaf, chunk), layers)
        part, _ = lax.optimization_barrier((part, after))
        new = gather(part, self.placements, part=LAYERS)
        return self.source.map_stacks(lambda stack, leaf, new: _put(stack, leaf, new, slot), chunks, new)

    def release(self, chunks: Arrays, slot: int, gradients: Arrays, chunk: int) -> tuple[Arrays, Arrays]:
        """Add the gradients of the chunk in `slot` to `gradients` (gradient placement): (chunks emptied, gradients).

        Bytes: `scatter_gradient` of each weight that the gradient placement shards.
        """
        part = self.source.map_stacks(lambda stack, leaf: _chunk(stack, leaf, slot), chunks)
        new = to_accumulators(part, self.placements, part=LAYERS)

        def added(stack: LayerStack, totals: Arrays, new: Arrays) -> Arrays:
            rows = stack.order.rows_per_chunk
            return jax.tree.map(lambda a, b: a.at[chunk * rows : (chunk + 1) * rows].add(b), totals, new)

        with jax.named_scope("gradients"):
            nothing = jax.tree.map(jnp.zeros_like, part)
            emptied = self.source.map_stacks(lambda stack, leaf, new: _put(stack, leaf, new, slot), chunks, nothing)
            return emptied, self.source.map_stacks(added, gradients, new)


def _chunk(stack: LayerStack, weights: Arrays, index: int) -> Arrays:
    """The rows of a chunk."""
    rows = stack.order.rows_per_chunk
    return jax.tree.map(lambda a: lax.slice_in_dim(a, index * rows, (index + 1) * rows), weights)


def _put(stack: LayerStack, weights: Arrays, new: Arrays, index: int) -> Arrays:
    """`weights` with the rows of a chunk replaced."""
    first = index * stack.order.rows_per_chunk
    return jax.tree.map(lambda a, b: lax.dynamic_update_slice_in_dim(a, b, first, 0), weights, new)


def fetched_placements(roles: Placements) -> Placements:
    """The placements of chunks that are gathered, and of gradients that are not yet scattered."""
    gathered = lambda weight: replace(weight, storage=weight.compute, gradient=weight.compute)
    dtypes = replace(roles.dtypes, storage=roles.dtypes.compute)
    return Placements(jax.tree.map(gathered, roles.weights), dtypes)
