"""From storage to compute placement at the entry of a layer, and gradients straight into the form they accumulate in.

A cotangent has the shape of its primal, so the gradient of a weight that is stored in one placement could not
accumulate in another. Each weight therefore comes with a *gradient accumulator*: a zero in gradient placement.
Differentiating with respect to the accumulator, and not the weight, makes the backward reduce-scatter directly into
gradient placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpar.mesh.axes import SHARD_AXES, vary
from jaxpar.mesh.coded import CodedStack, is_coded_stack
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.parameters import Arrays, Nested, Weights, only
from jaxpar.mesh.placements import REPLICAS, Placements, added_dim, one_message_each, unreduced_axes
from jaxpar.mesh.quantized.agreed import agreed
from jaxpar.mesh.quantized.transport import Transport
from jaxpar.mesh.quantized.travel import (
    gather_secondary,
    gather_shards,
    gather_stored,
    reduce_shards,
    scatter_shards,
    secondary_parts,
)

type Part = str | tuple[str, ...]
"""A part of the model, or of a part: the path of its weights in the trees of the placements."""


def gather(weights: Arrays, placements: Placements, *, part: Part, unstacked: bool = False) -> Arrays:
    """Weights from storage to compute placement and dtype, typed as varying over every axis; codes stay codes.

    `part` names the subtree of the placements that `weights` belongs to, of which they may leave out some; `unstacked`
    states that the `layers` dim is gone. Varying *before* the gather matters: the cast's derivative is a sum, which
    would otherwise run here, in compute dtype and once per microbatch. Bytes: `gather_stored` of each sharded weight in
    storage dtype.
    """
    one = partial(gather_one, dtype=placements.compute.dtype, unstacked=unstacked)
    layouts = placements.compute.layout, placements.storage.layout, placements.transports
    return jax.tree.map(one, weights, *(only(_of(tree, part), weights) for tree in layouts))


def gather_one(
    weight: jax.Array,
    compute: PartitionSpec,
    storage: PartitionSpec,
    transport: Transport,
    *,
    dtype: str,
    unstacked: bool = False,
) -> jax.Array:
    """`gather` of one weight."""
    added = added_dim(compute, storage)
    weight = vary(weight)
    own = transport.exact if is_code(weight) else transport
    if added:
        weight = gather_stored(weight, added[1], added[0] - unstacked, own)
    return weight if is_code(weight) else weight.astype(jnp.dtype(dtype))


def is_code(weight: jax.Array) -> bool:
    """Whether a weight is codes of 8 bits."""
    return weight.dtype.itemsize == 1


def to_secondary(weights: Arrays, placements: Placements, *, part: Part) -> Arrays:
    """Weights of one layer, as shards in storage dtype, with what a secondary shard has of the other ranks'.

    Those of all layers have it from `to_storage`; for layers in host memory it is fetched with each use.
    """
    own = partial(_with_secondary, unstacked=True)
    layouts = placements.compute.layout, placements.storage.layout, placements.transports
    return jax.tree.map(own, weights, *(_of(tree, part) for tree in layouts))


def _with_secondary(
    weight: jax.Array, compute: PartitionSpec, storage: PartitionSpec, transport: Transport, *, unstacked: bool = False
) -> jax.Array:
    added = added_dim(compute, storage)
    if added is None or transport.secondary == 1:
        return weight
    return gather_secondary(vary(weight), added[1], added[0] - unstacked, transport)


def to_accumulators(gradients: Arrays, placements: Placements, *, part: str, unstacked: bool = False) -> Arrays:
    """Gradients of gathered weights from compute to gradient placement and dtype: partial sums, or reduce-scattered.

    `gradients` may leave out weights of the part.
    Bytes: `scatter_shards` of each weight that the gradient placement shards, in gradient dtype.
    """
    trees = placements.compute.layout, placements.gradient.layout, placements.transports
    layouts = (only(tree[part], gradients) for tree in trees)
    return jax.tree.map(
        partial(to_accumulator, dtype=placements.gradient.dtype, unstacked=unstacked), gradients, *layouts
    )


def to_accumulator(
    grad: jax.Array,
    compute: PartitionSpec,
    gradient: PartitionSpec,
    transport: Transport,
    *,
    dtype: str,
    unstacked: bool,
) -> jax.Array:
    """`to_accumulators` of one weight."""
    added = added_dim(compute, gradient)
    with jax.named_scope("gradients"):
        grad = vary(grad.astype(dtype))
    return scatter_shards(grad, added[1], added[0] - unstacked, transport) if added else grad


def zero_accumulators(weights: Arrays, placements: Placements, *, part: str) -> Arrays:
    """Zeros in gradient placement for `weights` (in storage placement, of some weights of the part), varying over every
    axis."""
    dtype = jnp.dtype(placements.gradient.dtype)

    def one(
        weight: jax.Array, compute: PartitionSpec, storage: PartitionSpec, gradient: PartitionSpec, transport: Transport
    ) -> jax.Array:
        shape = list(weight.shape)
        if stored := added_dim(compute, storage):
            shape[stored[0]] //= secondary_parts(stored[1], transport)
        added = added_dim(storage, gradient)
        if added:
            shape[added[0]] //= jax.lax.axis_size(added[1])
        with jax.named_scope("gradients"):
            return vary(jnp.zeros(shape, dtype))

    roles = placements.compute, placements.storage, placements.gradient
    layouts = (only(tree[part], weights) for tree in (*(role.layout for role in roles), placements.transports))
    return jax.tree.map(one, weights, *layouts, is_leaf=is_coded_stack)


def materialize(weights: Arrays, accumulators: Arrays, placements: Placements, *, part: str) -> Arrays:
    """`gather`, with the gradient going to `accumulators` instead of `weights`. For weights outside the layer loop."""
    return _materialize((placements, part), weights, accumulators)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _materialize(static: tuple[Placements, str], weights: Arrays, accumulators: Arrays) -> Arrays:
    del accumulators
    return gather(weights, static[0], part=static[1])


def _materialize_forward(static: tuple[Placements, str], weights: Arrays, accumulators: Arrays) -> tuple[Arrays, None]:
    return _materialize(static, weights, accumulators), None


def _materialize_backward(static: tuple[Placements, str], _: None, gradients: Arrays) -> tuple[None, Arrays]:
    return None, to_accumulators(gradients, static[0], part=static[1])


_materialize.defvjp(_materialize_forward, _materialize_backward)


def _of[Leaf](tree: Nested[Leaf], part: Part) -> Nested[Leaf]:
    return reduce(lambda tree, name: tree[name], (part,) if isinstance(part, str) else part, tree)


def to_storage(master: Weights, placements: Placements) -> Weights:
    """Master weights from optimizer to storage placement and dtype: once per step.

    Under ZeRO-1 and 2 this is the step's one gather of the weights, in storage dtype; with a secondary shard, the one
    between its copies; otherwise a cast. State that is split over replicas is gathered over these first, exactly. Codes
    of 8 bits travel as they are. Bytes: `gather_shards` over each, `gather_secondary`.
    """
    dtype = jnp.dtype(placements.storage.dtype)

    def one(
        weight: jax.Array | CodedStack,
        compute: PartitionSpec,
        storage: PartitionSpec,
        optimizer: PartitionSpec,
        transport: Transport,
    ) -> jax.Array | CodedStack:
        with jax.named_scope("stored_weights"):
            stored = lambda own: _stored(own.astype(dtype), compute, storage, optimizer, transport)
            if not isinstance(weight, CodedStack):
                return stored(weight)
            return weight.map(lambda own: _stored(own, compute, storage, optimizer, transport.exact), stored)

    trees = ({part: tree[part] for part in master} for tree in _stored_trees(placements))
    return jax.tree.map(one, master, *trees, is_leaf=is_coded_stack)


def row_to_storage(master: Arrays, placements: Placements, *, part: Part) -> Arrays:
    """`to_storage` of one layer's weights, typed as varying over every axis."""
    dtype = jnp.dtype(placements.storage.dtype)
    with jax.named_scope("stored_weights"):
        own = lambda weight, *how: vary(_stored(weight.astype(dtype), *how, unstacked=True))
        return jax.tree.map(own, master, *(_of(tree, part) for tree in _stored_trees(placements)))


def _stored_trees(placements: Placements) -> tuple[Nested[PartitionSpec | Transport], ...]:
    roles = placements.compute, placements.storage, placements.optimizer
    return *(role.layout for role in roles), placements.transports


def _stored(
    weight: jax.Array,
    compute: PartitionSpec,
    storage: PartitionSpec,
    optimizer: PartitionSpec,
    transport: Transport,
    *,
    unstacked: bool = False,
) -> jax.Array:
    """One weight from optimizer to storage placement."""
    dim, axes = added_dim(storage, optimizer) or (0, ())
    for own in reversed(one_message_each(axes)):
        weight = gather_shards(weight, own, dim - unstacked, transport.exact if own == REPLICAS else transport)
    return _with_secondary(weight, compute, storage, transport, unstacked=unstacked)


def summed_early(gradients: Arrays, transports: Nested[Transport]) -> Arrays:
    """Complete gradients in gradient placement, of which those that travel early are summed over their ranks.

    Of a sum that is scattered, a rank has its own part in place, and the rest is as it was. `gradients` may leave out
    weights of `transports`. `reduced_gradient` leaves these sums out. Those that travel alike are one message: XLA
    would send several one after another, each beside little.
    Bytes: `reduce_shards` of each, or `scatter_shards` of one that is scattered, in gradient dtype.
    """
    leaves, structure = jax.tree.flatten(gradients)
    alike: dict[tuple[Transport, bool], dict[int, int | None]] = {}
    for place, transport in enumerate(structure.flatten_up_to(only(transports, gradients))):
        if transport.early:
            key = replace(transport, weight=None, secondary=1, early_dim=None), transport.early_dim is not None
            alike.setdefault(key, {})[place] = transport.early_dim
    for (transport, scattered), dims in alike.items():
        own = [leaves[place] for place in dims]
        cut = [dim for dim in dims.values() if dim is not None]
        summed = _scattered_together(own, cut, transport) if scattered else _summed_together(own, transport)
        for place, leaf in zip(dims, summed, strict=True):
            leaves[place] = leaf
    return structure.unflatten(leaves)


def _summed_together(gradients: list[jax.Array], transport: Transport) -> list[jax.Array]:
    """The sums over `transport.early`, in one message."""
    joined = jnp.concatenate([leaf.reshape(-1) for leaf in gradients]) if len(gradients) > 1 else gradients[0]
    summed = vary(reduce_shards(joined, transport.early, transport)).reshape(-1)
    return [part.reshape(leaf.shape) for part, leaf in zip(_cut(summed, gradients, 1), gradients, strict=True)]


def _scattered_together(gradients: list[jax.Array], dims: list[int], transport: Transport) -> list[jax.Array]:
    """`gradients` with this rank's part of the sums over `transport.early` in place, each along one of `dims`: one
    message, which has for each rank its part of every gradient."""
    ranks, rank = jax.lax.axis_size(transport.early), jax.lax.axis_index(transport.early)

    def for_each(leaf: jax.Array, dim: int) -> jax.Array:
        split = leaf.reshape(*leaf.shape[:dim], ranks, -1, *leaf.shape[dim:][1:])
        return jnp.moveaxis(split, dim % leaf.ndim, 0).reshape(ranks, -1)

    joined = jnp.concatenate([for_each(leaf, dim) for leaf, dim in zip(gradients, dims, strict=True)], axis=1)
    summed = vary(scatter_shards(joined, transport.early, 0, transport)).reshape(-1)

    def placed(leaf: jax.Array, dim: int, part: jax.Array) -> jax.Array:
        own = leaf.shape[dim] // ranks
        part = part.reshape(*leaf.shape[:dim], own, *leaf.shape[dim:][1:])
        return jax.lax.dynamic_update_slice_in_dim(leaf, part, rank * own, dim % leaf.ndim)

    return [placed(*own) for own in zip(gradients, dims, _cut(summed, gradients, ranks), strict=True)]


def _cut(joined: jax.Array, leaves: list[jax.Array], ranks: int) -> list[jax.Array]:
    """Parts of `joined`, of which one of `ranks` has each leaf's."""
    return jnp.split(joined, list(accumulate(leaf.size // ranks for leaf in leaves[:-1])))


def to_optimizer(gradients: Weights, placements: Placements) -> Weights:
    """Accumulated gradients from gradient to optimizer placement: once per step, the only reduction of ZeRO-0 and 1.

    Those of layers in host memory use `reduced_gradient` instead, twice per step.
    Bytes per weight: `scatter_shards` where the optimizer placement shards what the gradient placement does not, over
    replicas apart, then `reduce_shards` of the result over the other data axes, and `reduce_sum` over the rest that
    hold partial sums.
    """

    roles = placements.compute, placements.gradient, placements.optimizer
    layouts = (only(tree, gradients) for tree in (*(role.layout for role in roles), placements.transports))
    return jax.tree.map(partial(reduced_gradient, dtype=placements.optimizer.dtype), gradients, *layouts)


def reduced_gradient(
    grad: jax.Array,
    compute: PartitionSpec,
    gradient: PartitionSpec,
    optimizer: PartitionSpec,
    transport: Transport,
    *,
    dtype: str,
) -> jax.Array:
    """`to_optimizer` of one weight, or of some of its rows."""
    scattered = added_dim(compute, optimizer)
    dim, axes = added_dim(gradient, optimizer) or (0, ())
    for message in one_message_each(axes):
        own = own_part if transport.early_dim is not None else partial(scatter_shards, transport=transport)
        grad = own(grad, message, dim)
    done = (*(scattered[1] if scattered else ()), *transport.early)
    grad = agreed(grad, transport.early if transport.early_dim is None else ())
    rest = tuple(axis for axis in unreduced_axes(compute) if axis not in done)
    if transport.gradient is None:
        return reduce_sum(grad, rest).astype(jnp.dtype(dtype))
    data = tuple(axis for axis in rest if axis in ("replica", *SHARD_AXES))
    grad = reduce_sum(grad, tuple(axis for axis in rest if axis not in data))
    return reduce_shards(grad, data, transport).astype(jnp.dtype(dtype))


def own_part(grad: jax.Array, axes: Sequence[str], dim: int) -> jax.Array:
    """This rank's part of `dim`, of as many as `axes` have ranks."""
    size = grad.shape[dim] // jax.lax.axis_size(tuple(axes))
    return jax.lax.dynamic_slice_in_dim(grad, jax.lax.axis_index(tuple(axes)) * size, size, dim)
