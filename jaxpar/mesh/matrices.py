"""Shards into whole matrices and back: what an optimizer needs that looks at a matrix as a whole.

A stacked weight `[layers, ...]` rests sharded over some mesh axes on dims other than the first: its *group*. Gathering it
everywhere would repeat the work on every rank. Instead the ranks of a group trade layers for dims: each ends up with
every dim whole for its share of the layers, and the inverse exchange brings the results back. Axes on the layer dim
(pipe) take no part: a stage exchanges its own layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float


def axes_by_dim(layout: PartitionSpec, dims: int) -> tuple[tuple[str, ...], ...]:
    """Mesh axes on each of `dims` dims, major to minor; trailing dims that `layout` leaves out have none."""
    entries = (*layout, *[None] * (dims - len(layout)))
    return tuple(() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in entries)


def gather_matrices(x: Float[Array, "layers *shard"], layout: PartitionSpec) -> Float[Array, "share *whole"]:
    """Whole matrices for this rank's share of the layers, inside `shard_map`.

    `x` is a shard of a stacked weight laid out as `layout`. With a group of G ranks (the axes on dims after the first),
    share = ceil(layers / G): rank g of the group holds layers g * share and on; places past the last layer hold zeros.
    The result varies over the same axes as `x`.

    One all-to-all over the group. Bytes sent per device: `matrix_exchange_bytes`, that is
    share * (bytes of one whole matrix) * (G - 1) / G. `scatter_matrices` sends as many.
    """
    _check_varying(x, layout)
    axes = axes_by_dim(layout, x.ndim)[1:]
    group = tuple(axis for dim in axes for axis in dim)
    if not group:
        return x
    sizes = [_size(dim) for dim in axes]
    count = prod(sizes)
    share = -(-x.shape[0] // count)
    x = jnp.pad(x, [(0, share * count - x.shape[0]), *[(0, 0)] * (x.ndim - 1)])
    x = lax.all_to_all(x.reshape(count, share, *x.shape[1:]), group, split_axis=0, concat_axis=0)
    # [blocks of dim 1, of dim 2, ..., share, shard dim 1, ...] -> [share, blocks of dim 1, shard dim 1, ...]
    blocks, shard = len(sizes), x.shape[2:]
    order = [blocks, *(i for dim in range(blocks) for i in (dim, blocks + 1 + dim))]
    whole = [size * part for size, part in zip(sizes, shard, strict=True)]
    return x.reshape(*sizes, share, *shard).transpose(order).reshape(share, *whole)


def scatter_matrices(
    matrices: Float[Array, "share *whole"], layout: PartitionSpec, layers: int
) -> Float[Array, "layers *shard"]:
    """The inverse of `gather_matrices`: results for this rank's layers become its shard of every layer.

    `layers` is the number of layers in the shard, without padding. Bytes sent per device: `matrix_exchange_bytes`.
    """
    _check_varying(matrices, layout)
    axes = axes_by_dim(layout, matrices.ndim)[1:]
    group = tuple(axis for dim in axes for axis in dim)
    if not group:
        return matrices
    sizes = [_size(dim) for dim in axes]
    count, share = prod(sizes), matrices.shape[0]
    shard = [whole // size for size, whole in zip(sizes, matrices.shape[1:], strict=True)]
    split = [n for size, part in zip(sizes, shard, strict=True) for n in (size, part)]
    order = [*range(1, len(split), 2), 0, *range(2, len(split) + 1, 2)]
    x = matrices.reshape(share, *split).transpose(order).reshape(count, share, *shard)
    x = lax.all_to_all(x, group, split_axis=0, concat_axis=0)
    return x.reshape(count * share, *shard)[:layers]


def matrix_exchange_bytes(
    shape: tuple[int, ...], layout: PartitionSpec, axis_sizes: Mapping[str, int], itemsize: int
) -> int:
    """Bytes that one device sends in one `gather_matrices` (or `scatter_matrices`) of a weight of global `shape`."""
    first, *rest = axes_by_dim(layout, len(shape))
    layers = shape[0] // prod(axis_sizes[axis] for axis in first)
    group = prod(axis_sizes[axis] for dim in rest for axis in dim)
    share = -(-layers // group)
    return share * prod(shape[1:]) * itemsize * (group - 1) // group


def _size(axes: tuple[str, ...]) -> int:
    return prod(lax.axis_size(axis) for axis in axes)


def _check_varying(x: Array, layout: PartitionSpec) -> None:
    """A value that does not vary over its group would be exchanged with copies of itself."""
    axes = {axis for dim in axes_by_dim(layout, x.ndim) for axis in dim}
    varying = set(jax.typeof(x).manual_axis_type.varying)
    assert varying == axes, f"a shard laid out as {layout} must vary over exactly its axes, not over {sorted(varying)}"
