"""Grouped products in plain JAX, on any platform and in any dtype: the reference of the kernels.

A loop goes through blocks of rows that each lie in one group, and runs as often as there are such blocks: the work is
that of the groups, each rounded up to whole blocks, and nothing is computed for rows behind the last group.
`jax.lax.ragged_dot` is a dense product over all groups on CPUs and on GPUs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.grouped_matmul.blocks import RowBlocks, row_blocks
from pallas_kernels.grouped_matmul.work import in_blocks
from pallas_kernels.varying import vary_over, varying_axes

_LARGEST = 512
"""Rows of a block."""


def times_weights(
    rows: Float[Array, "m k"],
    weights: Float[Array, "groups k n"],
    sizes: Int[Array, " groups"],
    transposed: bool,
    *,
    interpret: bool = False,
) -> Float[Array, "m n"]:
    """Multiply each row by the matrix of its group; rows after the last group give 0. With `transposed`, weights are
    [n, k]. `interpret` has no effect here."""
    del interpret
    block, m = _block(rows, sizes), rows.shape[0]
    blocks = row_blocks(sizes, m, block)
    padded = jnp.pad(rows, ((0, block), (0, 0)))
    n = weights.shape[1 if transposed else 2]

    def step(index: jax.Array, out: jax.Array) -> jax.Array:
        group, start, _, count = _at(blocks, index)
        x = lax.dynamic_slice_in_dim(padded, start, block)
        w = lax.dynamic_index_in_dim(weights, group, keepdims=False)
        made = jnp.matmul(x, w.T if transposed else w, preferred_element_type=jnp.float32).astype(out.dtype)
        # Rows of the next group are written by its own blocks, which come later.
        inside = jnp.where(jnp.arange(block)[:, None] < count, made, 0)
        return lax.dynamic_update_slice_in_dim(out, inside, start, 0)

    return _loop(step, blocks, block, jnp.zeros((m + block, n), rows.dtype), rows)[:m]


def of_weights(
    rows: Float[Array, "m k"], d_out: Float[Array, "m n"], sizes: Int[Array, " groups"], *, interpret: bool = False
) -> Float[Array, "groups k n"]:
    """The sum over each group's rows of `row^T d_out`, in rows' dtype, summed in float32; 0 for empty groups."""
    del interpret
    block, m = _block(rows, sizes), rows.shape[0]
    blocks = row_blocks(sizes, m, block)
    x, d_out = (jnp.pad(each, ((0, block), (0, 0))) for each in (rows, d_out))
    zeros = jnp.zeros((sizes.shape[0], rows.shape[1], d_out.shape[1]), jnp.float32)

    def step(index: jax.Array, total: jax.Array) -> jax.Array:
        group, start, _, count = _at(blocks, index)
        inside = jnp.arange(block)[:, None] < count
        a, b = (jnp.where(inside, lax.dynamic_slice_in_dim(each, start, block), 0) for each in (x, d_out))
        of_group = lax.dynamic_index_in_dim(total, group, keepdims=False)
        of_group = of_group + jnp.matmul(a.T, b, preferred_element_type=jnp.float32)
        return lax.dynamic_update_index_in_dim(total, of_group, group, 0)

    return _loop(step, blocks, block, zeros, rows).astype(rows.dtype)


def _at(blocks: RowBlocks, index: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(lax.dynamic_index_in_dim(each, index, keepdims=False) for each in blocks)


def _loop(step, blocks: RowBlocks, block: int, zeros: jax.Array, rows: jax.Array) -> jax.Array:
    """`step` for each block that has rows; such blocks come first."""
    axes = varying_axes(rows)
    used = jnp.sum(blocks.high > 0, dtype=jnp.int32)
    with in_blocks(block):
        return lax.fori_loop(vary_over(jnp.int32(0), axes), vary_over(used, axes), step, vary_over(zeros, axes))


def _block(rows: jax.Array, sizes: jax.Array) -> int:
    """A power of two of about the mean size of a group: so padding is at most about as much work as the groups."""
    mean = max(1, rows.shape[0] // sizes.shape[0])
    return min(_LARGEST, max(8, 1 << (mean - 1).bit_length()))
