"""Shards into whole matrices and back, for an optimizer that needs whole matrices.

A stacked weight `[layers, ...]` is sharded over some mesh axes on dims other than the first: its *group*. Gathering it
everywhere would repeat the work on every rank. Instead the ranks of a group exchange layers for dims: each ends up with
every dim whole for its share of the layers, and the inverse exchange returns the results. Axes on the layer dim
(pipe) take no part: a stage exchanges its own layers.
"""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from jaxpar.mesh.axes import assert_varies_over
from jaxpar.mesh.rules import axes_of_dim, mesh_axes_of


def gather_matrices(x: Float[Array, " layers *shard"], layout: PartitionSpec) -> Float[Array, " share *whole"]:
    """Whole matrices for this rank's share of the layers, inside `shard_map`.

    `x` is a shard of a stacked weight laid out as `layout`, and varies over exactly the axes of `layout`, as does the
    result. With a group of n ranks, share = ceil(layers / n): rank i of the group holds layers i * share and on; places
    past the last layer hold zeros.

    One all-to-all over the group. Sends `share * m * (n - 1) / n` bytes with m the bytes of one whole matrix, which is
    `x * (n - 1) / n` where n divides the layers.
    """
    assert_varies_over(x, mesh_axes_of(layout), f"a shard laid out as {layout}")
    axes = [axes_of_dim(layout, dim) for dim in range(1, x.ndim)]
    group = sum(axes, ())
    if not group:
        return x
    sizes, shard = [_size(dim) for dim in axes], x.shape[1:]
    share = -(-x.shape[0] // prod(sizes))
    with jax.named_scope("gather_matrices"):
        x = jnp.pad(x, [(0, share * prod(sizes) - x.shape[0]), *[(0, 0)] * len(shard)])
        x = lax.all_to_all(x.reshape(prod(sizes), share, *shard), group, split_axis=0, concat_axis=0)
        # [rank along dim 1, along dim 2, ..., share, shard dim 1, ...] -> [share, rank along dim 1, shard dim 1, ...]
        order = [len(sizes), *(i for dim in range(len(sizes)) for i in (dim, len(sizes) + 1 + dim))]
        x = x.reshape(*sizes, share, *shard).transpose(order)
        return x.reshape(share, *(size * part for size, part in zip(sizes, shard, strict=True)))


def scatter_matrices(
    matrices: Float[Array, " share *whole"], layout: PartitionSpec, layers: int
) -> Float[Array, " layers *shard"]:
    """The inverse of `gather_matrices`: results for this rank's layers become its shard of every layer.

    `layers` is the number of layers in the shard, without padding. Sends as many bytes as `gather_matrices`.
    """
    assert_varies_over(matrices, mesh_axes_of(layout), f"matrices of a weight laid out as {layout}")
    axes = [axes_of_dim(layout, dim) for dim in range(1, matrices.ndim)]
    group = sum(axes, ())
    if not group:
        return matrices
    sizes, share = [_size(dim) for dim in axes], matrices.shape[0]
    shard = [whole // size for size, whole in zip(sizes, matrices.shape[1:], strict=True)]
    with jax.named_scope("scatter_matrices"):
        split = [n for pair in zip(sizes, shard, strict=True) for n in pair]
        order = [*range(1, len(split), 2), 0, *range(2, len(split) + 1, 2)]
        x = matrices.reshape(share, *split).transpose(order).reshape(prod(sizes), share, *shard)
        x = lax.all_to_all(x, group, split_axis=0, concat_axis=0)
        return x.reshape(-1, *shard)[:layers]


def gather_stack(x: Float[Array, "*shard"], layout: PartitionSpec, stack: int) -> Float[Array, " share *whole"]:
    """`gather_matrices` of a shard whose first `stack` dims (`STACKS`) number matrices."""
    return gather_matrices(x.reshape(-1, *x.shape[stack:]), _flat(layout, stack))


def scatter_stack(
    matrices: Float[Array, " share *whole"], layout: PartitionSpec, stack: tuple[int, ...]
) -> Float[Array, "*shard"]:
    """The inverse of `gather_stack`; `stack` are the sizes of the first dims of the shard."""
    shards = scatter_matrices(matrices, _flat(layout, len(stack)), prod(stack))
    return shards.reshape(*stack, *shards.shape[1:])


def _flat(layout: PartitionSpec, stack: int) -> PartitionSpec:
    """`layout` with its first dims as one, of which the ranks of the axes that split them have their own part."""
    own = tuple(axis for dim in range(stack) for axis in axes_of_dim(layout, dim))
    return PartitionSpec(own or None, *layout[stack:])


def _size(axes: tuple[str, ...]) -> int:
    return prod(lax.axis_size(axis) for axis in axes)
