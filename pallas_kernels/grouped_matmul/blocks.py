"""Blocks of rows that each lie in one group, from the sizes of the groups; their number is static."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int


class RowBlocks(NamedTuple):
    """Blocks of rows in order; surplus blocks at the end have no rows."""

    group: Int[Array, " blocks"]
    """Group of each block; the last group for surplus blocks."""
    start: Int[Array, " blocks"]
    """First row, a multiple of `align`; of the left over ones about the last row of the array."""
    low: Int[Array, " blocks"]
    """Rows from `start` on that are of a group before: fewer than `align`, in the first block of a group."""
    high: Int[Array, " blocks"]
    """End of the group's rows in the block, relative to `start`; 0 for surplus blocks."""


def most_blocks(rows: int, groups: int, block: int, align: int = 1) -> int:
    """Upper bound of the number of blocks: each group may have a partial one, and some rows of the group before."""
    return (rows + groups * (align - 1)) // block + groups


def row_blocks(sizes: Int[Array, " groups"], rows: int, block: int, align: int = 1) -> RowBlocks:
    """The blocks of consecutive groups in an array of `rows` rows; rows after the last group are in no block.

    A group that does not fit into the array ends with it. Blocks begin at multiples of `align`, of which `block` is
    one.
    """
    groups = sizes.shape[0]
    start, end = _limits(sizes, rows)
    aligned = start // align * align
    blocks = jnp.where(end > start, (end - aligned + block - 1) // block, 0)
    last = jnp.cumsum(blocks)
    index = jnp.arange(most_blocks(rows, groups, block, align), dtype=jnp.int32)
    group = jnp.minimum(jnp.searchsorted(last, index, side="right"), groups - 1).astype(jnp.int32)
    within = index - (last - blocks)[group]
    used = index < last[-1]
    first = jnp.where(used, aligned[group] + within * block, rows // align * align)
    low = jnp.where(used, jnp.maximum(start[group] - first, 0), 0)
    high = jnp.where(used, jnp.minimum(end[group] - first, block), 0)
    return RowBlocks(group, *(each.astype(jnp.int32) for each in (first, low, high)))


def all_row_blocks(
    sizes: Int[Array, " groups"], rows: int, block: int, steps: int, align: int = 1
) -> tuple[RowBlocks, Int[Array, " blocks"]]:
    """`row_blocks` of all rows, and the steps of each block's sum: `steps`, or 0 behind the last group.

    Rows behind the last group are a group without a matrix: nothing is summed up, and zeros are written.
    """
    groups = sizes.shape[0]
    behind = rows - jnp.minimum(jnp.maximum(sizes, 0).sum(), rows)
    blocks = row_blocks(jnp.concatenate([sizes, behind[None].astype(sizes.dtype)]), rows, block, align)
    of_block = jnp.where(blocks.group < groups, steps, 0)
    return blocks._replace(group=jnp.minimum(blocks.group, groups - 1)), of_block


def longest_first(sizes: Int[Array, " groups"], rows: int) -> tuple[Int[Array, " groups"], ...]:
    """The groups from the longest to the shortest, and the first row and the end of each of them."""
    start, end = _limits(sizes, rows)
    order = jnp.argsort(start - end, stable=True).astype(jnp.int32)
    return order, start[order], end[order]


def _limits(sizes: Int[Array, " groups"], rows: int) -> tuple[Int[Array, " groups"], Int[Array, " groups"]]:
    """The first row and the end of each group in an array of `rows` rows."""
    end = jnp.minimum(jnp.cumsum(jnp.maximum(sizes, 0).astype(jnp.int32)), rows)
    return jnp.concatenate([jnp.zeros_like(end[:1]), end[:-1]]), end
