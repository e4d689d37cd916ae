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
from pallas_kernels.varying import vary_over


def gather_matrices(x: Float[Array, "*shard"], layout: PartitionSpec, stack: int = 1) -> Float[Array, " share *whole"]:
    """Whole matrices for this rank's share of the layers, inside `shard_map`.

    `x` is a shard, laid out as `layout`, of a weight whose first `stack` dims (`STACKS`) number matrices, below called
    layers. It varies over exactly the axes of `layout`, as does the result. With a group of n ranks, share =
    ceil(layers / n): rank i of the group holds layers i * share and on, and zeros past the last layer.

    One all-to-all over the group. Sends `share * m * (n - 1) / n` bytes with m the bytes of one whole matrix, which is
    `x * (n - 1) / n` where n divides the layers.
    """
    assert_varies_over(x, mesh_axes_of(layout), f"a shard laid out as {layout}")
    x, shard = x.reshape(-1, *x.shape[stack:]), x.shape[stack:]
    axes = [axes_of_dim(layout, stack + dim) for dim in range(len(shard))]
    group = sum(axes, ())
    if not group:
        return x
    sizes = [_size(dim) for dim in axes]
    share = -(-x.shape[0] // prod(sizes))
    with jax.named_scope("gather_matrices"):
        x = jnp.pad(x, [(0, share * prod(sizes) - x.shape[0]), *[(0, 0)] * len(shard)])
        x = lax.all_to_all(x.reshape(prod(sizes), share, *shard), group, split_axis=0, concat_axis=0)
        # [rank along dim 1, along dim 2, ..., share, shard dim 1, ...] -> [share, rank along dim 1, shard dim 1, ...]
        order = [len(sizes), *(i for dim in range(len(sizes)) for i in (dim, len(sizes) + 1 + dim))]
        x = x.reshape(*sizes, share, *shard).transpose(order)
        return x.reshape(share, *(size * part for size, part in zip(sizes, shard, strict=True)))


def scatter_matrices(
    matrices: Float[Array, " share *whole"], layout: PartitionSpec, stack: tuple[int, ...]
) -> Float[Array, "*shard"]:
    """The inverse of `gather_matrices`: results for this rank's layers become its shard of every layer.

    `stack` are the sizes of the first dims of the shard, without padding. Sends as many bytes as `gather_matrices`.
    """
    dims = enumerate(matrices.shape[1:], len(stack))
    shape = (*stack, *(size // _size(axes_of_dim(layout, dim)) for dim, size in dims))
    like = vary_over(jnp.zeros(shape, matrices.dtype), mesh_axes_of(layout))
    # The transpose of an exchange, which only moves numbers, is its inverse.
    return jax.linear_transpose(lambda x: gather_matrices(x, layout, len(stack)), like)(matrices)[0]


def _size(axes: tuple[str, ...]) -> int:
    return prod(lax.axis_size(axis) for axis in axes)
