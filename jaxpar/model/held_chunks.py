"""Chunks of layers that are gathered whole, once for all microbatches of a batch, and whose gradients leave at once.

Breadth-first pipelines (arXiv:2211.05953) take all microbatches through a chunk before the next. Under ZeRO-3 a chunk's
weights are then gathered once forward and once backward per batch (the last chunk's once for both), not once per
microbatch, and its gradients are reduced once. The price is memory: the chunks in use lie in compute placement, with
gradients to match.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.mesh.axes import vary
from jaxpar.mesh.materialize import gather, sink_gradients
from jaxpar.mesh.parameters import Tree
from jaxpar.mesh.placements import Placement
from jaxpar.model.layer_loop import LayerLoop


def over_held_chunks(loop: LayerLoop) -> LayerLoop:
    """`loop` over weights that are in compute placement already, and gradients that stay in it."""
    roles = loop.placements
    gathered = Placement(roles.compute.layout, roles.compute.dtype)
    whole = Placement(roles.compute.layout, roles.gradient.dtype)
    return replace(loop, placements=replace(roles, storage=gathered, gradient=whole))


def no_chunks(loop: LayerLoop, weights: Tree, slots: int, dtype: str) -> Tree:
    """Zeros in compute placement for `slots` chunks of `weights` (storage placement)."""
    like = jax.eval_shape(lambda weights: loop.load(weights, 0), weights)
    rows = slots * loop.order.layers_per_chunk
    return jax.tree.map(lambda leaf: vary(jnp.zeros((rows, *leaf.shape), dtype)), like)


def hold(loop: LayerLoop, held: Tree, slot: int, weights: Tree, chunk: int, after: jax.Array) -> Tree:
    """`held` with a chunk of `weights` gathered into `slot`, not before `after` is known.

    Without that, the compiler would take the second gather of a chunk for the first, and keep its result until then.
    Bytes: `gather_weight` of each sharded weight.
    """
    rows = loop.order.layers_per_chunk
    part = jax.tree.map(lambda a: lax.slice_in_dim(a, chunk * rows, (chunk + 1) * rows), weights)
    part, _ = lax.optimization_barrier((part, after))
    new = gather(part, loop.placements, part="layers")
    return jax.tree.map(lambda a, b: lax.dynamic_update_slice_in_dim(a, b, slot * rows, 0), held, new)


def release(loop: LayerLoop, held: Tree, slot: int, gradients: Tree, chunk: int) -> tuple[Tree, Tree]:
    """Add the gradients of the chunk held in `slot` to `gradients` (gradient placement): (held emptied, gradients).

    Bytes: `scatter_gradient` of each weight that the gradient placement shards.
    """
    rows = loop.order.layers_per_chunk
    part = jax.tree.map(lambda a: lax.slice_in_dim(a, slot * rows, (slot + 1) * rows), held)
    new = sink_gradients(part, loop.placements, part="layers")
    with jax.named_scope("gradients"):
        add = lambda a, b: a.at[chunk * rows : (chunk + 1) * rows].add(b)
        empty = lambda a, b: lax.dynamic_update_slice_in_dim(a, jnp.zeros_like(b), slot * rows, 0)
        return jax.tree.map(empty, held, part), jax.tree.map(add, gradients, new)
