"""Grouped matmul kernels for NVIDIA GPUs since Ampere, through Pallas' Triton lowering.

A program computes one tile of the result. In products with weights every tile of rows lies in one group: the first
begins where the group begins, the others where the one before ends. In the gradient of weights a program goes through
the rows of its group. What lies beside the group is masked in loads and stores, and nothing is added up by atomics:
results are the same bits in every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from pallas_kernels.device import target
from pallas_kernels.grouped_matmul.blocks import all_row_blocks, longest_first
from pallas_kernels.pallas import call_triton, pl
from pallas_kernels.pallas import triton as plgpu
from pallas_kernels.varying import vary_alike

__all__ = ["TILES", "Tile", "of_weights", "times_weights"]


@dataclass(frozen=True)
class Tile:
    """Tile of a program."""

    rows: int
    """Rows of the result: of a group, or of the gradient of its matrix."""
    columns: int
    step: int
    """Elements of the contraction per step."""
    warps: int
    stages: int


TILES = {
    (9.0, "rows"): Tile(128, 256, 64, warps=8, stages=4),
    (9.0, "weights"): Tile(128, 256, 64, warps=8, stages=4),
    (8.0, "rows"): Tile(128, 128, 64, warps=8, stages=4),
    (8.0, "weights"): Tile(128, 128, 64, warps=8, stages=4),
}
"""Tiles by minimum compute capability and kind of result: the largest that compile without spills within the shared
memory of such GPUs (99 KiB for 8.6 and 8.9 too)."""

INTERPRETED = Tile(32, 32, 16, warps=4, stages=1)

SECTION = 8
"""Tiles of rows that are gone through together, column by column, so that what they read stays in L2."""


def times_weights(
    rows: jax.Array, weights: jax.Array, sizes: jax.Array, *, transposed: bool, interpret: bool = False
) -> jax.Array:
    """Like `reference.times_weights`."""
    (m, k), n, tile = rows.shape, weights.shape[1 if transposed else 2], _tile("rows", interpret)
    work = _work(sizes, m, k, tile)
    kernel, programs = partial(_rows_kernel, tile, transposed, len(work[0])), len(work[0]) * pl.cdiv(n, tile.columns)
    return _call(kernel, "of_rows", programs, tile, (m, n), (rows, weights, *work), interpret)


def _work(sizes: Int[Array, " groups"], m: int, k: int, tile: Tile) -> tuple[jax.Array, ...]:
    """Group, first row, end of the rows relative to it, and steps of the sum, for each tile of rows."""
    blocks, steps = all_row_blocks(sizes, m, tile.rows, pl.cdiv(k, tile.step))
    return blocks.group, blocks.start, blocks.high, steps


def of_weights(rows: jax.Array, d_out: jax.Array, sizes: jax.Array, *, interpret: bool = False) -> jax.Array:
    """Like `reference.of_weights`."""
    (m, k), groups, n = rows.shape, sizes.shape[0], d_out.shape[1]
    tile = _tile("weights", interpret)
    order, start, end = longest_first(sizes, m)
    sides = pl.cdiv(k, tile.rows), pl.cdiv(n, tile.columns)
    operands = rows, d_out, order, start, end
    kernel = partial(_weights_kernel, tile, sides)
    programs = groups * sides[0] * sides[1]
    return _call(kernel, "of_weights", programs, tile, (groups, k, n), operands, interpret)


def _tile(of: str, interpret: bool) -> Tile:
    if interpret:
        return INTERPRETED
    capability = target().compute_capability or 0.0
    return next(tile for (least, what), tile in TILES.items() if what == of and capability >= least)


def _call(kernel: Any, name: str, programs: int, tile: Tile, shape: tuple, operands: tuple, interpret: bool) -> Any:
    operands, name = vary_alike(operands), f"grouped_matmul_{name}"
    [out] = call_triton(kernel, name, (programs,), tile, ((shape, operands[0].dtype),), operands, interpret)
    return out


@dataclass(frozen=True)
class Range:
    """Neighbouring indices of one dimension that a program takes at a time."""

    start: Any
    size: int
    end: Any
    """First index that must not be read or written."""
    full: bool
    """Whether the range is known at compile time to lie before `end`."""

    @property
    def slice(self) -> Any:
        return pl.ds(self.start, self.size)

    @property
    def indices(self) -> jax.Array:
        return self.start + jnp.arange(self.size)

    @property
    def inside(self) -> jax.Array | None:
        """Mask of the indices before `end`; None if the range is full."""
        return None if self.full else self.indices < self.end

    def load(self, ref: Any, other: float) -> jax.Array:
        """Load the range of a one-dimensional array."""
        return plgpu.load(ref.at[self.slice], mask=self.inside, other=None if self.full else other)


def both(rows: Range, columns: Range) -> jax.Array | None:
    """The mask of a tile."""
    masks = []
    if rows.inside is not None:
        masks.append(rows.inside[:, None])
    if columns.inside is not None:
        masks.append(columns.inside[None, :])
    return jnp.broadcast_to(reduce(jnp.logical_and, masks), (rows.size, columns.size)) if masks else None


def load(ref: Any, rows: Range, columns: Range, *before: Any) -> jax.Array:
    """A tile, with zeros outside; `before` are indices of the dimensions before rows and columns."""
    mask = both(rows, columns)
    return plgpu.load(ref.at[*before, rows.slice, columns.slice], mask=mask, other=None if mask is None else 0.0)


class _Part(NamedTuple):
    """The tile of a product with weights that a program computes."""

    group: jax.Array
    rows: Range
    columns: Range
    used: jax.Array
    """Whether the tile has rows."""
    steps: jax.Array
    """Number of steps of the sum."""


def _local_part(
    tile: Tile, blocks: int, n: int, group_ref: Any, start_ref: Any, high_ref: Any, steps_ref: Any
) -> _Part:
    """The part of this program; the last four have the values of each of the `blocks` tiles of rows."""
    block, column = _tile_position(pl.program_id(0), blocks, pl.cdiv(n, tile.columns))
    start, high = start_ref[block], high_ref[block]
    rows = Range(start, tile.rows, start + high, full=False)
    columns = Range(column * tile.columns, tile.columns, n, n % tile.columns == 0)
    return _Part(group_ref[block], rows, columns, high > 0, steps_ref[block])


def _rows_kernel(
    tile: Tile, transposed: bool, blocks: int, rows_ref, weights_ref, group_ref, start_ref, high_ref, steps_ref, out_ref
):  # fmt: skip
    """A tile of rows of one group times the columns of its matrix."""
    k, work = rows_ref.shape[1], (group_ref, start_ref, high_ref, steps_ref)
    group, rows, columns, used, steps = _local_part(tile, blocks, out_ref.shape[1], *work)

    @pl.when(used)
    def _() -> None:
        def step(index: jax.Array, total: jax.Array) -> jax.Array:
            depth = Range(index * tile.step, tile.step, k, k % tile.step == 0)
            x = load(rows_ref, rows, depth)
            if transposed:
                return total + plgpu.dot(x, load(weights_ref, columns, depth, group).T)
            return total + plgpu.dot(x, load(weights_ref, depth, columns, group))

        total = lax.fori_loop(0, steps, step, jnp.zeros((tile.rows, tile.columns), jnp.float32))
        tile_ref = out_ref.at[rows.slice, columns.slice]
        plgpu.store(tile_ref, total.astype(out_ref.dtype), mask=both(rows, columns))


def _weights_kernel(
    tile: Tile, sides: tuple[int, int], rows_ref, d_out_ref, group_ref, start_ref, end_ref, out_ref
):  # fmt: skip
    """A tile of the gradient of a matrix: the sum over the rows of its group."""
    k, n = rows_ref.shape[1], d_out_ref.shape[1]
    each = sides[0] * sides[1]
    program = pl.program_id(0)
    index, within = program // each, program % each
    side, column = within // sides[1], within % sides[1]
    start, end = start_ref[index], end_ref[index]
    inner = Range(side * tile.rows, tile.rows, k, k % tile.rows == 0)
    columns = Range(column * tile.columns, tile.columns, n, n % tile.columns == 0)

    def step(index: jax.Array, total: jax.Array) -> jax.Array:
        rows = Range(start + index * tile.step, tile.step, end, full=False)
        return total + plgpu.dot(load(rows_ref, rows, inner).T, load(d_out_ref, rows, columns))

    zeros = jnp.zeros((tile.rows, tile.columns), jnp.float32)
    total = lax.fori_loop(0, pl.cdiv(end - start, tile.step), step, zeros)
    tile_ref = out_ref.at[group_ref[index], inner.slice, columns.slice]
    plgpu.store(tile_ref, total.astype(out_ref.dtype), mask=both(inner, columns))


def _tile_position(program: jax.Array, blocks: int, columns: int) -> tuple[jax.Array, jax.Array]:
    """(tile of rows, tile of columns): in sections of tiles of rows, column by column."""
    section = program // (SECTION * columns)
    height = jnp.minimum(blocks - section * SECTION, SECTION)
    within = program - section * (SECTION * columns)
    return section * SECTION + within % height, within // height
