"""Gathers from storage to compute placement at the entry of a layer, and gradients straight into the form they
accumulate in.

A cotangent has the shape of its primal, so the gradient of a weight that is stored in one placement could not
accumulate in another. Each weight therefore comes with a *gradient accumulator*: a zero in gradient placement.
Differentiating with respect to the accumulator, and not the weight, makes the backward reduce-scatter directly into
gradient placement.

Weights and gradients may leave out weights of their part of the model. `unstacked` says that the `layers` dim is gone.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.mesh.axes import AXES, SHARD_AXES, vary
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.parameters import Arrays, Nested, Weights, subtree_like
from jaxpar.mesh.placements import (
    REPLICAS,
    Placements,
    WeightPlacement,
    added_dim,
    local_shape,
    message_axes,
    unreduced_axes,
)
from jaxpar.mesh.quantized.transport import Transport
from jaxpar.mesh.quantized.weight_collectives import (
    gather_hpz,
    gather_shards,
    gather_stored,
    reduce_shards,
    scatter_shards,
)
from jaxpar.mesh.quantized_stack import is_quantized_stack
from pallas_kernels.vjp_parts import custom_vjp

type Part = str | tuple[str, ...]
"""A part of the model, or of a part: the path of its weights in the tree of the placements."""


# ---- from storage to compute placement, and back


def gather(weights: Arrays, placements: Placements, *, part: Part, unstacked: bool = False) -> Arrays:
    """Weights from storage to compute placement and dtype, typed as varying over every axis; codes stay codes.

    Varying *before* the gather matters: the cast's derivative is a sum, which would otherwise run here, in compute
    dtype and once per microbatch. Bytes: `gather_stored` of each sharded weight in storage dtype.
    """
    one = partial(gather_one, dtype=placements.compute.dtype, unstacked=unstacked)
    return jax.tree.map(one, weights, placements.for_part(part, weights))


def gather_one(weight: jax.Array, placed: WeightPlacement, *, dtype: str, unstacked: bool = False) -> jax.Array:
    """`gather` of one weight."""
    added = added_dim(placed.compute, placed.storage)
    weight, transport = vary(weight), _transport(weight, placed)
    if added:
        weight = gather_stored(weight, added[1], added[0] - unstacked, transport)
    return weight if is_code(weight) else weight.astype(placed.dtype(dtype))


def is_code(weight: jax.Array) -> bool:
    """Whether a weight is codes of 8 bits."""
    return weight.dtype.itemsize == 1


def _transport(weight: jax.Array, placed: WeightPlacement) -> Transport:
    return placed.transport.exact if is_code(weight) else placed.transport


def to_accumulators(gradients: Arrays, placements: Placements, *, part: Part, unstacked: bool = False) -> Arrays:
    """Gradients of gathered weights from compute to gradient placement and dtype: partial sums, or reduce-scattered.

    Bytes: `scatter_shards` of each weight that the gradient placement shards, in gradient dtype.
    """
    one = partial(to_accumulator, dtype=placements.gradient.dtype, unstacked=unstacked)
    return jax.tree.map(one, gradients, placements.for_part(part, gradients))


def to_accumulator(grad: jax.Array, placed: WeightPlacement, *, dtype: str, unstacked: bool = False) -> jax.Array:
    """`to_accumulators` of one weight."""
    added = added_dim(placed.compute, placed.gradient)
    with jax.named_scope("gradients"):
        grad = vary(grad.astype(placed.dtype(dtype)))
    return scatter_shards(grad, added[1], added[0] - unstacked, placed.transport) if added else grad


def zero_accumulators(weights: Nested[object], placements: Placements, *, part: Part) -> Arrays:
    """Zeros in gradient placement for each of `weights` (of which only the names are read), varying over every axis."""
    sizes = {axis: lax.axis_size(axis) for axis in AXES}

    def one(placed: WeightPlacement) -> jax.Array:
        with jax.named_scope("gradients"):
            dtype = placed.dtype(placements.gradient.dtype)
            return vary(jnp.zeros(local_shape(placed.shape, placed.gradient, sizes), dtype))

    return jax.tree.map(one, placements.for_part(part, weights))


def materialize(weights: Arrays, accumulators: Arrays, placements: Placements, *, part: str) -> Arrays:
    """`gather`, with the gradient going to `accumulators` instead of `weights`. For weights outside the layer loop."""
    return _materialize((placements, part), weights, accumulators)


@custom_vjp(0)
def _materialize(static: tuple[Placements, str], weights: Arrays, accumulators: Arrays) -> Arrays:
    del accumulators
    return gather(weights, static[0], part=static[1])


_materialize.defvjp(
    lambda static, weights, accumulators: (_materialize(static, weights, accumulators), None),
    lambda static, _, gradients: (None, to_accumulators(gradients, static[0], part=static[1])),
)


# ---- from optimizer to storage placement


def to_storage(master: Weights, placements: Placements) -> Weights:
    """Master weights from optimizer to storage placement and dtype: once per step.

    Under ZeRO-1 and 2 this is the step's one gather of the weights, in storage dtype; with an hpZ shard, the one
    between its copies; otherwise a cast. State that is split over replicas is gathered over these first, exactly. Codes
    of 8 bits travel as they are. Bytes: `gather_shards` over each, `gather_hpz`.
    """
    stored = partial(_stored, dtype=placements.storage.dtype)
    one = lambda weight, placed: jax.tree.map(lambda rows: stored(rows, placed), weight)
    return jax.tree.map(one, master, subtree_like(placements.weights, master), is_leaf=is_quantized_stack)


def row_to_storage(master: Arrays, placements: Placements, *, part: Part) -> Arrays:
    """`to_storage` of one layer's weights, typed as varying over every axis."""
    stored = partial(_stored, dtype=placements.storage.dtype, unstacked=True)
    return vary(jax.tree.map(stored, master, placements.for_part(part, master)))


def _stored(weight: jax.Array, placed: WeightPlacement, *, dtype: str, unstacked: bool = False) -> jax.Array:
    """`to_storage` of one weight."""
    transport = _transport(weight, placed)
    with jax.named_scope("stored_weights"):
        weight = weight if is_code(weight) else weight.astype(placed.dtype(dtype))
        dim, axes = added_dim(placed.storage, placed.optimizer) or (0, ())
        for over in reversed(message_axes(axes)):
            weight = gather_shards(weight, over, dim - unstacked, transport.exact if over == REPLICAS else transport)
        added = added_dim(placed.compute, placed.storage)
        if added is None or transport.hpz == 1:
            return weight
        return gather_hpz(vary(weight), added[1], added[0] - unstacked, transport)


# ---- from gradient to optimizer placement


def to_optimizer(gradients: Weights, placements: Placements) -> Weights:
    """Accumulated gradients from gradient to optimizer placement: once per step, the only reduction of ZeRO-0 and 1.

    Those of layers in host memory use `reduced_gradient` instead, twice per step.
    Bytes per weight: `scatter_shards` where the optimizer placement shards what the gradient placement does not, over
    replicas apart, then `reduce_shards` of the result over the other data axes, and `reduce_sum` over the rest that
    hold partial sums.
    """
    one = partial(reduced_gradient, dtype=placements.optimizer.dtype)
    return jax.tree.map(one, gradients, subtree_like(placements.weights, gradients))


def reduced_gradient(grad: jax.Array, placed: WeightPlacement, *, dtype: str) -> jax.Array:
    """`to_optimizer` of one weight, or of some of its rows."""
    compute, transport = placed.compute, placed.transport
    scattered = added_dim(compute, placed.optimizer)
    dim, axes = added_dim(placed.gradient, placed.optimizer) or (0, ())
    for message in message_axes(axes):
        grad = scatter_shards(grad, message, dim, transport)
    done = scattered[1] if scattered else ()
    rest = tuple(axis for axis in unreduced_axes(compute) if axis not in done)
    data = tuple(axis for axis in rest if axis in ("replica", *SHARD_AXES)) if transport.gradient else ()
    grad = reduce_sum(grad, tuple(axis for axis in rest if axis not in data))
    return reduce_shards(grad, data, transport).astype(jnp.dtype(dtype))
