"""Chunks of layers that are gathered whole, once for all microbatches, and whose gradients are reduced once.

Breadth-first pipelines (arXiv:2211.05953) run all microbatches through a chunk before the next. Under ZeRO-3 a chunk's
weights are then gathered once forward and once backward per batch (the last chunk's once for both), not once per
microbatch, and its gradients are reduced once. The price is memory: the chunks in use, and their gradients, are in
compute placement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import LAYERS, own_layers, with_own_layers
from jaxpar.mesh.materialize import gather, to_accumulators
from jaxpar.mesh.parameters import Arrays
from jaxpar.mesh.placements import Placement
from jaxpar.model.loop.layer_loop import LayerLoop
from jaxpar.model.loop.layer_stack import LayerStack


def over_held_chunks(loop: LayerLoop) -> LayerLoop:
    """`loop` over weights that are already in compute placement, and gradients that stay in it."""
    roles = loop.placements
    gathered = Placement(roles.compute.layout, roles.compute.dtype)
    whole = Placement(roles.compute.layout, roles.gradient.dtype)
    return replace(loop, placements=replace(roles, storage=gathered, gradient=whole))


def no_chunks(loop: LayerLoop, weights: Arrays, slots: int, dtype: str, gradients: bool) -> Arrays:
    """Zeros in compute placement for `slots` chunks of `weights` (storage placement), or for their `gradients`."""

    def zeros(stack: LayerStack, weights: Arrays) -> Arrays:
        like = jax.eval_shape(lambda weights: stack.load(weights, 0), weights)
        like = stack.kind.derivative.halves(like)[0] if gradients else like
        rows = slots * stack.order.rows_per_chunk
        return jax.tree.map(lambda leaf: vary(jnp.zeros((rows, *leaf.shape), dtype)), like)

    return _by_stack(loop, zeros, weights)


def hold(loop: LayerLoop, held: Arrays, slot: int, weights: Arrays, chunk: int, after: jax.Array) -> Arrays:
    """`held` with a chunk of `weights` gathered into `slot`, not before `after` is computed.

    Otherwise the compiler would merge the second gather of a chunk with the first, and keep its result until then.
    Bytes: `gather_weight` of each sharded weight.
    """
    part = _by_stack(loop, lambda stack, own: _chunk(stack, own, chunk), weights)
    part, _ = lax.optimization_barrier((part, after))
    new = gather(part, loop.placements, part=LAYERS)
    return _by_stack(loop, lambda stack, own, new: _put(stack, own, new, slot), held, new)


def release(loop: LayerLoop, held: Arrays, slot: int, gradients: Arrays, chunk: int) -> tuple[Arrays, Arrays]:
    """Add the gradients of the chunk held in `slot` to `gradients` (gradient placement): (held emptied, gradients).

    Bytes: `scatter_gradient` of each weight that the gradient placement shards.
    """
    part = _by_stack(loop, lambda stack, own: _chunk(stack, own, slot), held)
    new = to_accumulators(part, loop.placements, part=LAYERS)

    def added(stack: LayerStack, totals: Arrays, new: Arrays) -> Arrays:
        rows = stack.order.rows_per_chunk
        return jax.tree.map(lambda a, b: a.at[chunk * rows : (chunk + 1) * rows].add(b), totals, new)

    with jax.named_scope("gradients"):
        emptied = _by_stack(
            loop, lambda stack, own, new: _put(stack, own, new, slot), held, jax.tree.map(jnp.zeros_like, part)
        )
        return emptied, _by_stack(loop, added, gradients, new)


def _by_stack(loop: LayerLoop, function: Callable[..., Arrays], *layers: Arrays) -> Arrays:
    """`function(stack, ...)` of the stacks of each kind in `layers`, in the structure of `layers`."""
    found = layers[0]
    for kind in loop.kinds:
        found = with_own_layers(found, kind, function(loop.stack(kind), *(own_layers(tree, kind) for tree in layers)))
    return found


def _chunk(stack: LayerStack, weights: Arrays, place: int) -> Arrays:
    """The rows of a chunk."""
    rows = stack.order.rows_per_chunk
    return jax.tree.map(lambda a: lax.slice_in_dim(a, place * rows, (place + 1) * rows), weights)


def _put(stack: LayerStack, weights: Arrays, new: Arrays, place: int) -> Arrays:
    """`weights` with the rows of a chunk replaced."""
    first = place * stack.order.rows_per_chunk
    return jax.tree.map(lambda a, b: lax.dynamic_update_slice_in_dim(a, b, first, 0), weights, new)
