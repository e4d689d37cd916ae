"""The kernel for Hopper GPUs: one warpgroup loads by TMA, two multiply by wgmma and add up in float32.

A step is one tile of the sum, 128 codes of a row: four wgmma with an accumulator that begins at zero. Its result is
multiplied by the scales of its rows and columns and added to the sum in registers, while the other consumer's products
keep the tensor cores busy (two consumers, each with 64 rows of the tile, as in DeepGEMM). An accumulator of the tensor
cores never holds more than 128 products.

A tile of the result has up to two pieces of 128 columns, whose products a consumer makes one after the other: two sums
and one accumulator are 192 of its 240 registers. A step loads 48 KiB for what two tiles of one piece load 64 for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from pallas_kernels.attention.mosaic.memory import Loaded, tiled
from pallas_kernels.attention.mosaic.registers import across, column_values, down, full, row_values
from pallas_kernels.attention.mosaic.schedule import CONSUMERS, ROWS, TILE, scalar, specialise, zero
from pallas_kernels.choice import HOPPER, INDEXED, refused_by_gpu
from pallas_kernels.device import multiprocessors
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl
from pallas_kernels.tiled_matmul.request import Request
from pallas_kernels.varying import vary_over, varying_axes

STEP = 128
"""Codes of a row that have one scale, and that a step multiplies."""
STAGES = {(1, 2): 5, (1, 4): 4, (2, 2): 3, (2, 4): 3}
"""Steps in shared memory, by pieces of a tile and bytes of a number of the result: the most that fit into 227 KiB
beside one piece of it."""
SECTION = 8
"""Tiles of rows that are gone through together, column by column, so that programs share what they read in L2."""


def refusal(request: Request) -> str | None:
    """None if the kernel supports the request, otherwise the reason."""
    if (reason := refused_by_gpu(request, only=(HOPPER,), dtypes=("bfloat16", "float32"))) is not None:
        return reason
    if request.m % TILE or request.n % TILE or request.k % STEP or request.tile != STEP:
        return f"sides are multiples of {TILE}, cut into tiles of {STEP}, not {request}"
    if max(request.m * request.k, request.n * request.k, request.m * request.n) >= INDEXED:
        return f"its arrays have at most 2^31 - 1 elements, which {request} exceeds"
    return None


def tiled_matmul(
    left: Shaped[Array, "m k"],
    left_scales: Float[Array, "m tiles"],
    right: Shaped[Array, "n k"],
    right_scales: Float[Array, "row_tiles tiles"],
    dtype: Any,
    *,
    interpret: bool = False,
) -> Float[Array, "m n"]:
    """Like `api.tiled_matmul`."""
    (m, k), n = left.shape, right.shape[0]
    squares = right_scales.shape[0] != n
    if squares:  # one number, which TMA cannot load: the same for all rows of the square, 3% of the bytes of the codes
        right_scales = jnp.repeat(right_scales, n // right_scales.shape[0], axis=0)
    of_tiles = lambda scales: scales.astype(jnp.float32).T  # of a step side by side
    pieces = pieces_of(n)
    columns = n // (pieces * TILE)
    tiles = m // TILE * columns
    programs = 1 if interpret else min(multiprocessors(), tiles)  # the simulator runs several in turn
    stages = STAGES[pieces, jnp.dtype(dtype).itemsize]
    body = Kernel(stages, pieces, m // TILE, columns, programs, squares)
    steps = jnp.full(1, k // STEP, jnp.int32)
    out = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), dtype),
        scratch_types={"memory": body.memory(left.dtype, right.dtype, dtype)},
        grid=(programs,),
        grid_names=("program",),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        kernel_name="tiled_matmul",
        interpret=plgpu.InterpretGPUParams(detect_races=True) if interpret else None,
    )(left, of_tiles(left_scales), right, of_tiles(right_scales), steps)
    return vary_over(out, varying_axes(left))  # a launch forgets what its results vary over


def pieces_of(columns: int) -> int:
    """Pieces of a tile of a result with `columns` columns: two, where they divide it."""
    return 1 + (columns % (2 * TILE) == 0)


class Memory(NamedTuple):
    """Buffers in shared memory."""

    left: Loaded
    """64 quantized rows and their scales, by step and consumer."""
    right: Loaded
    """128 quantized rows of each piece and their scales, by step."""
    out: Any
    """A piece of the result, by consumer."""


@dataclass(frozen=True)
class Kernel:
    """The kernel: each program of the launch computes its tiles of the result one after the other."""

    stages: int
    pieces: int
    """Pieces of 128 columns of a tile."""
    rows: int
    """Tiles of the rows of the result."""
    columns: int
    """Tiles of its columns."""
    programs: int
    squares: bool
    """Whether all rows of the right operand in a tile have the same scale."""

    def memory(self, left: Any, right: Any, out: Any) -> Memory:
        """The types of its shared memory, given formats and the dtype of the result."""
        slots = self.stages
        return Memory(
            Loaded.of(slots * CONSUMERS, 1, ROWS, (STEP,), left, (1, jnp.float32)),
            Loaded.of(slots, CONSUMERS, self.pieces * TILE, (STEP,), right, (1, jnp.float32)),
            tiled((CONSUMERS, ROWS, TILE), out),
        )

    def __call__(self, *refs: Any, memory: Memory) -> None:
        """`refs` are both operands with their scales, the number of steps and the result."""
        left, right, steps, out = refs[:2], refs[2:4], refs[4], refs[5]
        produce = lambda: self.produce(left, right, scalar(steps, 0), memory)
        specialise(lambda warpgroup: self.consume(out, scalar(steps, 0), memory, warpgroup), produce)

    def for_each_tile(self, steps: Any, body: Callable[[Any, Any, Any], None]) -> None:
        """`body(row, column, done)` for the tiles of this program, `done` steps after the first one's first."""
        program = lax.axis_index("program")
        count = lax.div(self.rows * self.columns - program + self.programs - 1, jnp.int32(self.programs))

        def tile(index: Any, _: None) -> None:
            section, within = _divided(program + index * self.programs, SECTION * self.columns)
            first = section * SECTION
            height = jnp.minimum(SECTION, self.rows - first)  # the last section may have fewer rows
            column = lax.div(within, height)
            body((first + within - column * height) * TILE, column * self.pieces * TILE, index * steps)

        lax.fori_loop(0, count, tile, None)

    def produce(self, left: tuple[Any, Any], right: tuple[Any, Any], steps: Any, memory: Memory) -> None:
        def tile(row: Any, column: Any, done: Any) -> None:
            def step(index: Any, _: None) -> None:
                contraction = pl.ds(index * STEP, STEP)
                slot = memory.right.slot(done + index)
                for half in range(CONSUMERS):
                    rows = pl.ds(row + half * ROWS, ROWS)
                    sources = left[0].at[rows, contraction], left[1].at[pl.ds(index, 1), rows]
                    memory.left.load(slot * CONSUMERS + half, *sources)
                columns = pl.ds(column, self.pieces * TILE)
                memory.right.load(slot, right[0].at[columns, contraction], right[1].at[pl.ds(index, 1), columns])

            lax.fori_loop(0, steps, step, None)

        self.for_each_tile(steps, tile)
        memory.left.drain()
        memory.right.drain()

    def consume(self, out: Any, steps: Any, memory: Memory, warpgroup: Any) -> None:
        for slot in range(self.stages):
            memory.left.release(slot * CONSUMERS + warpgroup)
            memory.right.release(slot)

        def tile(row: Any, column: Any, done: Any) -> None:
            add = lambda index, sums: add_products(memory, warpgroup, done + index, sums, squares=self.squares)
            half, rows = memory.out.at[warpgroup], pl.ds(row + warpgroup * ROWS, ROWS)
            for piece, total in enumerate(lax.fori_loop(0, steps, add, zeros(self.pieces))):
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                half[...] = total.astype(half.dtype)
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(half, out.at[rows, pl.ds(column + piece * TILE, TILE)])

        self.for_each_tile(steps, tile)
        plgpu.wait_smem_to_gmem(0)


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


def _divided(dividend: Any, by: int) -> tuple[Any, Any]:
    return lax.div(dividend, jnp.int32(by)), lax.rem(dividend, jnp.int32(by))
