"""Products of consecutive groups of rows with a matrix each, in plain XLA: a tile of one group's rows at a time.

`lax.ragged_dot` multiplies all rows with all matrices on CPUs and some GPUs. Here the FLOPs are those of the groups,
each rounded up to whole tiles: a loop over as many tiles as there are.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.mesh.axes import varying_axes
from pallas_kernels.varying import vary_alike, vary_over

TILE = 128
"""Rows of a tile."""

type Sizes = Int[Array, " groups"]


def grouped_matmul(
    rows: Float[Array, "m k"], weights: Float[Array, "groups k n"], group_sizes: Sizes
) -> Float[Array, "m n"]:
    """Row i times the matrix of its group; rows after the last group are 0. Sums are in float32."""
    rows, weights, group_sizes = vary_alike((rows, weights, group_sizes))
    return _grouped(rows, weights, group_sizes)


@jax.custom_vjp
def _grouped(rows: Float[Array, "m k"], weights: Float[Array, "groups k n"], sizes: Sizes) -> Float[Array, "m n"]:
    return _products(rows, weights, sizes, transposed=False)


type _Kept = tuple[jax.Array, jax.Array, jax.Array]


def _forward(rows: jax.Array, weights: jax.Array, sizes: Sizes) -> tuple[jax.Array, _Kept]:
    return _grouped(rows, weights, sizes), (rows, weights, sizes)


def _backward(kept: _Kept, dy: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    rows, weights, sizes = kept
    return _products(dy, weights, sizes, transposed=True), _outer(rows, dy, sizes).astype(weights.dtype), None


_grouped.defvjp(_forward, _backward)


def _products(rows: jax.Array, weights: jax.Array, sizes: Sizes, *, transposed: bool) -> jax.Array:
    """Of each row and its group's matrix or, `transposed`, the transpose of that."""
    width = weights.shape[1] if transposed else weights.shape[2]
    tile, padded = _tile(len(rows)), _padded(rows)

    def step(number: jax.Array, out: jax.Array) -> jax.Array:
        group, first, counts = _of_tile(number, sizes, tile)
        matrix = lax.dynamic_index_in_dim(weights, group, keepdims=False)
        own = lax.dynamic_slice_in_dim(padded, first, tile)
        product = lax.dot_general(
            own, matrix, (((1,), (1 if transposed else 0,)), ((), ())), preferred_element_type=jnp.float32
        )
        # A tile may reach into the next group, whose tiles come later and replace these rows.
        product = jnp.where(counts[:, None], product, 0).astype(out.dtype)
        return lax.dynamic_update_slice_in_dim(out, product, first, 0)

    out = _like(jnp.zeros((len(padded), width), rows.dtype), rows)
    return lax.fori_loop(_like(jnp.int32(0), rows), _tiles(sizes, tile), step, out)[: len(rows)]


def _outer(rows: jax.Array, dy: jax.Array, sizes: Sizes) -> Float[Array, "groups k n"]:
    """For each group the product of its rows, transposed, and those of `dy`, in float32."""
    tile, x, y = _tile(len(rows)), _padded(rows), _padded(dy)

    def step(number: jax.Array, out: jax.Array) -> jax.Array:
        group, first, counts = _of_tile(number, sizes, tile)
        own = jnp.where(counts[:, None], lax.dynamic_slice_in_dim(x, first, tile), 0)
        product = lax.dot_general(
            own, lax.dynamic_slice_in_dim(y, first, tile), (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )
        total = lax.dynamic_index_in_dim(out, group, keepdims=False) + product
        return lax.dynamic_update_index_in_dim(out, total, group, 0)

    out = _like(jnp.zeros((len(sizes), rows.shape[1], dy.shape[1]), jnp.float32), rows)
    return lax.fori_loop(_like(jnp.int32(0), rows), _tiles(sizes, tile), step, out)


def _tile(rows: int) -> int:
    return min(TILE, max(8, rows))


def _padded(rows: jax.Array) -> jax.Array:
    """With rows that a last tile may read and write."""
    return jnp.pad(rows, [(0, _tile(len(rows))), (0, 0)])


def _tiles(sizes: Sizes, tile: int) -> Int[Array, ""]:
    return jnp.sum(-(-sizes // tile))


def _of_tile(number: jax.Array, sizes: Sizes, tile: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(group, first row, which rows are the group's) of a tile; the tiles of a group begin at its first row."""
    tiles = -(-sizes // tile)
    ends = jnp.cumsum(tiles)
    group = jnp.sum(ends <= number)
    within = (number - (ends - tiles)[group]) * tile
    first = (jnp.cumsum(sizes) - sizes)[group] + within
    return group, first, jnp.arange(tile) < sizes[group] - within


def _like(x: jax.Array, rows: jax.Array) -> jax.Array:
    return vary_over(x, varying_axes(rows))
