"""The kernel for Hopper GPUs of codes with scales of tiles, in groups or not: one warpgroup loads by TMA, two multiply
by wgmma and add up in float32, for the tiles of the result that `pallas_kernels.grouped_matmul` has.

A step is one tile of the sum, 128 codes of a row: four wgmma with an accumulator that begins at zero. Its result is
multiplied by the scales of its rows and columns and added to the sum in registers, while the other consumer's products
keep the tensor cores busy (two consumers, each with 64 rows of the tile, as in DeepGEMM). An accumulator of the tensor
cores never holds more than 128 products.

A tile of the result has up to two pieces of 128 columns, whose products a consumer makes one after the other: two sums
and one accumulator are 192 of its 240 registers. A step loads 48 KiB for what two tiles of one piece load 64 for.

Rows of groups: tiles begin where their group begins, or up to 7 rows before, at a multiple of 8. What a tile loads
before and behind its group is multiplied with the group's matrix too, and not written: a row's sum has nothing of
another row. A dense product is one group of whole tiles.

Gradients of matrices sum over the rows of a group, of which each has whole tiles: nothing else is loaded. The units of
a Hopper sum along neighbouring bytes alone, so both operands come transposed within each tile of 128 rows, in which
order XLA writes them where it quantizes; to transpose the whole would take it another pass over the codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.mosaic.memory import Loaded, tiled
from pallas_kernels.attention.mosaic.registers import across, column_values, down, full, row_values
from pallas_kernels.attention.mosaic.schedule import CONSUMERS, ROWS, TILE, specialise, zero
from pallas_kernels.choice import HOPPER, refused_by_gpu
from pallas_kernels.grouped_matmul.blocks import all_row_blocks, longest_first
from pallas_kernels.grouped_matmul.mosaic.kernel import At, Kernel, Tiles, Work, run
from pallas_kernels.grouped_matmul.mosaic.tiles import ALIGN
from pallas_kernels.grouped_matmul.mosaic.tiles import STEP as PIECE
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl
from pallas_kernels.tiled_matmul.request import Request

STEP = 128
"""Codes of a row that have one scale, and that a step multiplies."""
STAGES = {(1, 2): 5, (1, 4): 4, (2, 2): 3, (2, 4): 3}
"""Steps in shared memory, by pieces of a tile and bytes of a number of the result: the most that fit into 227 KiB
beside one piece of it, and in bfloat16 the rows that leave a tile one by one."""


def refusal(request: Request) -> str | None:
    """None if the kernels support the request, otherwise the reason."""
    dense = request.groups is None
    dtypes = ("bfloat16", "float32") if dense else ("bfloat16",)
    if (reason := refused_by_gpu(request, only=(HOPPER,), dtypes=dtypes)) is not None:
        return reason
    m, n, k = request.m, request.n, request.k
    cut, fits = ("tiles", True) if dense or request.of == "weights" else ("squares", request.squares)
    if n % TILE or k % STEP or (dense and m % TILE) or request.tile != STEP or not fits:
        sides = "sides" if dense else "sides of matrices"
        return f"{sides} are multiples of {TILE}, cut into {cut} of {STEP}, not {request}"
    return None


def tiled_matmul(
    left: jax.Array, left_scales: jax.Array, right: jax.Array, right_scales: jax.Array, sizes: jax.Array | None,
    dtype: Any, *, interpret: bool = False,
) -> jax.Array:  # fmt: skip
    """Like `api.tiled_matmul`."""
    (m, k), n, name = left.shape, right.shape[-2], "tiled_matmul_of_rows"
    if sizes is None:  # one group, of whole tiles
        right, right_scales, tiles = right[None], right_scales[None], m // TILE
        alike = lambda value: jnp.full(tiles, value, jnp.int32)
        work = Work(alike(0), jnp.arange(tiles, dtype=jnp.int32) * TILE, alike(0), alike(TILE), alike(k // STEP))
    else:
        blocks, steps = all_row_blocks(sizes, m, TILE, k // STEP, ALIGN)
        work = Work(*blocks, steps)
    # A step's scales side by side, in rows of whole 16 bytes, as TMA loads them; it loads no single number, so that a
    # square's scale is repeated for its rows: 3% of the bytes of the codes.
    of_left = jnp.pad(left_scales.astype(jnp.float32), ((0, -m % ALIGN), (0, 0))).T
    squares = right_scales.shape[1] != n
    if squares:
        right_scales = jnp.repeat(right_scales, n // right_scales.shape[1], axis=1)
    arrays = left, right, of_left, right_scales.astype(jnp.float32).mT
    kind = partial(TiledKernel, forms=(left.dtype, right.dtype), squares=squares, complete=sizes is None)
    return run(kind, tiles_of(n, "rows"), arrays, work, (m, n), dtype, name=name, interpret=interpret)


def of_weights(
    rows: jax.Array, row_scales: jax.Array, d_out: jax.Array, d_out_scales: jax.Array, sizes: jax.Array,
    dtype: Any, *, interpret: bool = False,
) -> jax.Array:  # fmt: skip
    """Like `api.tiled_weight_gradients`."""
    order, start, end = longest_first(sizes, rows.shape[0])
    work = Work(order, start, jnp.zeros_like(start), end - start, (end - start) // STEP)
    transposed = lambda quantized: quantized.reshape(-1, STEP, quantized.shape[1]).mT
    arrays = transposed(rows), transposed(d_out), row_scales.astype(jnp.float32), d_out_scales.astype(jnp.float32)
    shape, name = (sizes.shape[0], rows.shape[1], d_out.shape[1]), "tiled_matmul_of_weights"
    kind, tiles = partial(TiledKernel, forms=(rows.dtype, d_out.dtype)), tiles_of(d_out.shape[1], "weights")
    return run(kind, tiles, arrays, work, shape, dtype, name=name, interpret=interpret)


def pieces_of(columns: int) -> int:
    """Pieces of a tile of a result with `columns` columns: two, where they divide it."""
    return 1 + (columns % (2 * TILE) == 0)


def tiles_of(columns: int, of: Literal["rows", "weights"]) -> Tiles:
    """The tiles of a result with `columns` columns."""
    return Tiles(pieces_of(columns) * TILE, of, transposed=True)


class Memory(NamedTuple):
    """Buffers in shared memory."""

    left: Loaded
    """64 quantized rows and their scales, by step and consumer."""
    right: Loaded
    """128 quantized rows of a matrix, or of transposed gradients, of each piece, and their scales, by step."""
    out: Any
    """A piece of the result, by consumer."""
    rest: Any
    """See `pallas_kernels.grouped_matmul.mosaic.kernel.Memory`."""


class Arrays(NamedTuple):
    """Arrays in global memory."""

    left: Any
    """[rows, codes]; of gradients, and so is the right one, [tiles, rows, codes of a tile]."""
    right: Any
    """Quantized matrices [groups, rows, contraction]."""
    left_scales: Any
    right_scales: Any
    work: Work
    out: Any


@dataclass(frozen=True)
class TiledKernel(Kernel):
    """The kernel: each program of the launch computes its tiles of the result one after the other."""

    forms: tuple[Any, Any]
    """The dtypes of both operands."""
    squares: bool = False
    """Whether all rows of the right operand in a tile have the same scale."""
    complete: bool = True
    """Whether a tile has rows of its group alone, or none."""

    @property
    def of_rows(self) -> bool:
        return self.tiles.of == "rows"

    @property
    def pieces(self) -> int:
        return self.tiles.columns // TILE

    @property
    def stages(self) -> int:
        return STAGES[self.pieces, jnp.dtype(self.dtype).itemsize]

    def memory(self) -> Memory:
        slots, (left, right) = self.stages, self.forms
        return Memory(
            Loaded.of(slots * CONSUMERS, 1, ROWS, (STEP,), left, (1, jnp.float32)),
            Loaded.of(slots, CONSUMERS, self.tiles.columns, (STEP,), right, (1, jnp.float32)),
            tiled((CONSUMERS, ROWS, TILE), self.dtype),
            None if self.complete else plgpu.SMEM((CONSUMERS, ROWS, PIECE), self.dtype),
        )

    def __call__(self, left: Any, right: Any, *refs: Any, memory: Any) -> None:
        left_scales, right_scales, *rest = refs
        arrays = Arrays(left, right, left_scales, right_scales, Work(*rest[:5]), rest[5])
        specialise(partial(self.consume, arrays, memory), partial(self.produce, arrays, memory))

    def produce(self, arrays: Any, memory: Any) -> None:
        def load_tile(at: At) -> None:
            first, before = (at.start, 0) if self.of_rows else (at.side, lax.div(at.start, jnp.int32(STEP)))
            group = (at.group,) if self.of_rows else ()

            def load(index: Any, _: None) -> None:
                step = before + index
                quantized = lambda rows: (rows, pl.ds(step * STEP, STEP)) if self.of_rows else (step, rows)
                scales, columns = pl.ds(step, 1), pl.ds(at.column, self.tiles.columns)
                slot = memory.right.slot(at.done + index)
                for half in range(CONSUMERS):
                    local_rows = pl.ds(first + half * ROWS, ROWS)
                    sources = arrays.left.at[quantized(local_rows)], arrays.left_scales.at[scales, local_rows]
                    memory.left.load(slot * CONSUMERS + half, *sources)
                sources = arrays.right.at[*group, *quantized(columns)], arrays.right_scales.at[*group, scales, columns]
                memory.right.load(slot, *sources)

            lax.fori_loop(0, at.steps, load, None)

        self.for_each_tile(arrays.work, load_tile)
        memory.left.drain()
        memory.right.drain()

    def consume(self, arrays: Any, memory: Any, warpgroup: Any) -> None:
        for slot in range(self.stages):
            memory.left.release(slot * CONSUMERS + warpgroup)
            memory.right.release(slot)
        self.for_each_tile(arrays.work, partial(self.multiply, arrays, memory, warpgroup))
        plgpu.wait_smem_to_gmem(0)

    def multiply(self, arrays: Any, memory: Any, warpgroup: Any, at: At) -> None:
        """Compute this consumer's half of a tile."""
        add = lambda index, sums: add_products(memory, warpgroup, at.done + index, sums, squares=self.squares)
        half = memory.out.at[warpgroup]
        for piece, total in enumerate(lax.fori_loop(0, at.steps, add, zeros(self.pieces))):
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            half[...] = total.astype(half.dtype)
            plgpu.commit_smem()
            self.write(half, arrays.out, memory.rest, warpgroup, at._replace(column=at.column + piece * TILE))


def zeros(pieces: int) -> tuple[jax.Array, ...]:
    """The sums of a tile's pieces before its first step."""
    return (full((ROWS, TILE), 0.0),) * pieces


def add_products(
    memory: Any, warpgroup: Any, index: Any, sums: tuple[jax.Array, ...], *, squares: bool
) -> tuple[jax.Array, ...]:
    """The sums of each piece with the products of a step, of this consumer's rows, times the scales of both sides.

    `memory` has `left` and `right`, as `Memory` has them.
    """
    slot = memory.right.slot(index)
    half = slot * CONSUMERS + warpgroup
    memory.left.wait(half)
    memory.right.wait(slot)
    (left, left_scales), (right, right_scales) = memory.left.at(half), memory.right.at(slot)

    def products(piece: int, accumulator: Any) -> tuple[Any, ...]:
        columns = pl.ds(piece * TILE, TILE)
        plgpu.wgmma(accumulator, left, right.at[columns].transpose((1, 0)))
        of_rows = row_values(left_scales.at[0])  # while the products are under way
        if squares:
            of_rows, of_columns = of_rows * right_scales[0, piece * TILE], None
        else:
            of_columns = column_values(right_scales.at[0, columns])
        plgpu.commit_smem()  # TMA writes there again when these are read
        return accumulator[...], of_rows, of_columns

    def add(piece: int, _: Any, total: jax.Array) -> jax.Array:
        accumulator = plgpu.WGMMAAccumulatorRef((ROWS, TILE), jnp.float32)
        new, of_rows, of_columns = pl.run_scoped(partial(products, piece), accumulator)
        if piece == len(sums) - 1:
            memory.left.release(half)
            memory.right.release(slot)
        new = new * across(of_rows, new.shape)
        return total + (new if of_columns is None else new * down(of_columns, new.shape))

    once = 1 + zero(index)
    return tuple(lax.fori_loop(0, once, partial(add, piece), total) for piece, total in enumerate(sums))
