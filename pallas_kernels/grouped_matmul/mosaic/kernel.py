"""The one kernel of all three products: rows times weights, gradients times transposed weights, and rows^T times
gradients, for tiles that lie in one group.

A program is three warpgroups: the last loads by TMA, the first two compute 64 rows of a tile each. Tiles begin where
their group begins, or up to 7 rows before, at a multiple of 8, so that a group of n rows takes n / 128 tiles and less
than one more. What a tile loads before and behind its group is not written (products with weights) or zeroed in shared
memory (gradients of weights).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from pallas_kernels.attention.mosaic.memory import Loaded, tiled
from pallas_kernels.attention.mosaic.schedule import CONSUMERS, scalar, specialise
from pallas_kernels.device import multiprocessors
from pallas_kernels.grouped_matmul.mosaic.tiles import ALIGN, SECTION, STAGES, STEP
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl
from pallas_kernels.varying import vary_over, varying_axes

HALF = 64
"""Rows of a consumer: what one wgmma computes."""


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of a product; static."""

    columns: int
    """Columns of a tile of the result."""
    of: Literal["rows", "weights"]
    """Kind of result: the rows of all groups, or a matrix for each group."""
    transposed: bool = False
    """The weights are [columns, summed over]."""

    @property
    def stages(self) -> int:
        return STAGES[self.columns]


class Work(NamedTuple):
    """Tiles of rows, or groups, in the order in which they are gone through."""

    group: Int[Array, " tiles"]
    start: Int[Array, " tiles"]
    """First row, a multiple of 8."""
    low: Int[Array, " tiles"]
    """Rows from `start` on before those of the group, at most 7."""
    high: Int[Array, " tiles"]
    """End of the group's rows in the tile, relative to `start`."""
    steps: Int[Array, " tiles"]
    """Number of steps of the sum."""


class Memory(NamedTuple):
    """Buffers in shared memory."""

    steps: Loaded
    """Operands of each step: the left one, a half for each consumer, and the right one."""
    out: Any
    rest: Any
    """Buffer from which the rows of a partial tile are stored, 64 columns at a time: in plain order, in which any
    number of rows can be copied. None if tiles are always full, or empty."""
    together: Any
    """The barrier at which consumers wait for each other's zeros; None where none are written."""


def run(
    kind: Callable[..., Kernel],
    tiles: Tiles,
    arrays: tuple[jax.Array, ...],
    work: Work,
    shape: tuple[int, ...],
    dtype: Any,
    *,
    name: str,
    interpret: bool,
) -> jax.Array:
    """The result, of this shape. `arrays` are both operands, and what else the kernel reads beside `work`."""
    columns, sides, section = -(-shape[-1] // tiles.columns), 1, SECTION
    if tiles.of == "weights":
        sides, section = -(-shape[1] // (CONSUMERS * HALF)), 1
    count = work.group.shape[0]
    # The simulator runs several programs in turn, which its search for races does not know.
    programs = 1 if interpret else min(multiprocessors(), count * sides * columns)
    body = kind(tiles, count, sides, columns, section, programs, dtype)
    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(shape, dtype),
        scratch_types={"memory": body.memory()},
        grid=(programs,),
        grid_names=("program",),
        num_threads=body.threads,
        thread_name="warpgroup",
        kernel_name=name,
        interpret=plgpu.InterpretGPUParams(detect_races=True) if interpret else None,
    )
    return vary_over(kernel(*arrays, *work), varying_axes(arrays[0]))  # a launch forgets what its results vary over


class Arrays(NamedTuple):
    """Arrays in global memory."""

    left: Any
    right: Any
    work: Work
    out: Any

    @classmethod
    def of(cls, left: Any, right: Any, refs: tuple[Any, ...]) -> Arrays:
        """Both operands, and what else a kernel gets: the parts of the work and the result."""
        return cls(left, right, Work(*refs[:5]), refs[5])


class At(NamedTuple):
    """A tile of the result."""

    group: Any
    start: Any
    low: Any
    high: Any
    steps: Any
    side: Any
    """First row of the tile in the matrix of its group, where the result is of weights."""
    column: Any
    """First column of the tile."""
    done: Any
    """Steps of the tiles before."""
    index: Any
    """Number of the tiles before."""


@dataclass(frozen=True)
class Kernel:
    """The kernel: each program of the launch computes its tiles one after the other."""

    tiles: Tiles
    count: int
    """Tiles of rows, or groups."""
    sides: int
    """Tiles of the rows of a matrix, where the result is of weights."""
    columns: int
    """Tiles of the columns of the result."""
    section: int
    """Tiles of rows that are gone through together, column by column."""
    programs: int
    """Number of programs of the launch."""
    dtype: Any

    @property
    def threads(self) -> int:
        """Warpgroups of a program."""
        return CONSUMERS + 1

    def memory(self) -> Any:
        """The types of its shared memory."""
        slots, wide, dtype = self.tiles.stages, self.tiles.columns, self.dtype
        right = (slots, wide, STEP) if self.tiles.transposed else (slots, STEP, wide)
        types = tiled((slots * CONSUMERS, HALF, STEP), dtype), tiled(right, dtype)
        ready = plgpu.Barrier(num_barriers=slots, num_arrivals=CONSUMERS + 1)
        of_rows = self.tiles.of == "rows"
        return Memory(
            steps=Loaded(types, ready, plgpu.Barrier(num_barriers=slots, num_arrivals=CONSUMERS)),
            out=tiled((CONSUMERS, HALF, wide), dtype),
            rest=plgpu.SMEM((CONSUMERS, HALF, STEP), dtype) if of_rows else None,
            together=None if of_rows else plgpu.Barrier(num_arrivals=CONSUMERS),
        )

    def __call__(self, left: Any, right: Any, *refs: Any, memory: Any) -> None:
        arrays = Arrays.of(left, right, refs)
        specialise(partial(self.consume, arrays, memory), partial(self.produce, arrays, memory))

    def for_each_tile(self, work: Work, body: Callable[[At], None]) -> None:
        """Run `body` for every tile of this program, in sections of tiles of rows, column by column.

        What `work` has of the next tile is read before a tile is computed: a read takes as long as some steps.
        """
        program, position = lax.axis_index("program"), lambda index: self.position(program + index * self.programs)
        count = lax.div(self.count * self.sides * self.columns - program + self.programs - 1, jnp.int32(self.programs))

        def read(index: Any) -> tuple[Any, ...]:
            return tuple(scalar(values, position(index)[0]) for values in work)

        def step(index: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            (group, start, low, high, steps), done = carry
            following, (_, side, column) = read(jnp.minimum(index + 1, count - 1)), position(index)
            body(At(group, pl.multiple_of(start, ALIGN), low, high, steps, side, column, done, index))
            return following, done + steps

        lax.fori_loop(0, count, step, (read(0), jnp.int32(0)))

    def position(self, index: Any) -> tuple[Any, Any, Any]:
        """The tile of rows, and first row and column of the result, of a tile of all programs."""
        section, within = _divided(index, self.section * self.sides * self.columns)
        first = section * self.section
        height = jnp.minimum(self.section, self.count - first)  # the last section may have fewer tiles of rows
        across = lax.div(within, height)
        side, column = _divided(across, self.columns)
        return first + within - across * height, side * (CONSUMERS * HALF), column * self.tiles.columns

    def produce(self, arrays: Arrays, memory: Memory) -> None:
        slots = self.tiles.stages

        def load_tile(at: At) -> None:
            def load(step: Any, _: None) -> None:
                slot = lax.rem(at.done + step, jnp.int32(slots))
                plgpu.barrier_wait(memory.steps.free.at[slot])
                ready, (left, right) = memory.steps.ready.at[slot], memory.steps.memory
                for half in range(CONSUMERS):
                    source = arrays.left.at[self.left_rows(at, step, HALF, half)]
                    plgpu.copy_gmem_to_smem(source, left.at[slot * CONSUMERS + half], ready)
                plgpu.copy_gmem_to_smem(arrays.right.at[self.right(at, step)], right.at[slot], ready)

            lax.fori_loop(0, at.steps, load, None)

        self.for_each_tile(arrays.work, load_tile)
        for slot in range(slots):
            plgpu.barrier_wait(memory.steps.free.at[slot])

    def left_rows(self, at: At, step: Any, rows: int, part: int = 0) -> tuple[Any, Any]:
        """The slice of the left operand at a step of the sum, for a part of the tile's rows."""
        if self.tiles.of == "rows":
            return pl.ds(at.start + part * rows, rows), pl.ds(step * STEP, STEP)
        return pl.ds(at.start + step * STEP, STEP), pl.ds(at.side + part * rows, rows)

    def right(self, at: At, step: Any) -> tuple[Any, ...]:
        """The slice of the right operand at a step of the sum."""
        along, columns = pl.ds(step * STEP, STEP), pl.ds(at.column, self.tiles.columns)
        if self.tiles.of == "weights":
            return pl.ds(at.start + step * STEP, STEP), columns
        return (at.group, columns, along) if self.tiles.transposed else (at.group, along, columns)

    def consume(self, arrays: Arrays, memory: Memory, warpgroup: Any) -> None:
        for slot in range(self.tiles.stages):
            memory.steps.release(slot)
        self.for_each_tile(arrays.work, partial(self.multiply, arrays, memory, warpgroup))
        plgpu.wait_smem_to_gmem(0)

    def multiply(self, arrays: Arrays, memory: Memory, warpgroup: Any, at: At) -> None:
        """Compute this consumer's half of a tile."""

        def compute(accumulator: Any) -> jax.Array:
            lax.fori_loop(0, at.steps, partial(self.add, memory, warpgroup, at, accumulator), None)
            return accumulator[...]

        value = pl.run_scoped(compute, plgpu.WGMMAAccumulatorRef((HALF, self.tiles.columns), jnp.float32))
        last = lax.rem(at.done + at.steps + self.tiles.stages - 1, jnp.int32(self.tiles.stages))
        pl.when(at.steps > 0)(lambda: memory.steps.release(last))
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        memory.out.at[warpgroup][...] = value.astype(self.dtype)
        plgpu.commit_smem()
        self.write(memory.out.at[warpgroup], arrays.out, memory.rest, warpgroup, at)

    def add(self, memory: Memory, warpgroup: Any, at: At, accumulator: Any, step: Any, _: None) -> None:
        """A step of the sum: its product is under way while that of the step before ends, whose slot is then free."""
        slots = jnp.int32(self.tiles.stages)
        slot = lax.rem(at.done + step, slots)
        memory.steps.wait(slot)
        left, right = memory.steps.memory[0].at[slot * CONSUMERS + warpgroup], memory.steps.memory[1].at[slot]
        if self.tiles.of == "weights":
            low, high = at.low - step * STEP, at.high - step * STEP
            pl.when((low > 0) | (high < STEP))(lambda: self.hide(memory, warpgroup, slot, low, high))
            left = left.transpose((1, 0))
        plgpu.wgmma(accumulator, left, right.transpose((1, 0)) if self.tiles.transposed else right)
        plgpu.wgmma_wait(1)
        pl.when(step > 0)(lambda: memory.steps.release(lax.rem(at.done + step + slots - 1, slots)))

    def hide(self, memory: Memory, warpgroup: Any, slot: Any, low: Any, high: Any) -> None:
        """Zero what is loaded beside the group, in both operands: it may be infinite or no number.

        Each consumer zeros its half of the left operand and some columns of the right one, then waits for the other.
        """
        left, right = memory.steps.memory
        hide_rows(left.at[slot * CONSUMERS + warpgroup], low, high)
        for piece in range(self.tiles.columns // STEP):
            columns = right.at[slot, :, pl.ds(piece * STEP, STEP)]
            pl.when(warpgroup == piece % CONSUMERS)(partial(hide_rows, columns, low, high))
        plgpu.commit_smem()
        plgpu.barrier_arrive(memory.together)
        plgpu.barrier_wait(memory.together)

    def write(self, half: Any, out: Any, rest: Any, warpgroup: Any, at: At) -> None:
        """Copy a half to global memory, of a tile of rows only those of its group."""
        wide = half.shape[-1]
        columns = pl.ds(at.column, wide)
        first = warpgroup * HALF
        if self.tiles.of == "weights":
            plgpu.copy_smem_to_gmem(half, out.at[at.group, pl.ds(at.side + first, HALF), columns])
            return
        low, high = jnp.maximum(at.low - first, 0), jnp.minimum(at.high - first, HALF)

        @pl.when((low == 0) & (high == HALF))
        def _() -> None:
            plgpu.copy_smem_to_gmem(half, out.at[pl.ds(at.start + first, HALF), columns])

        if rest is None:
            return

        @pl.when((low < high) & (high - low < HALF))
        def _() -> None:
            for piece in range(wide // STEP):
                corner = at.start + first, at.column + piece * STEP
                self.write_some(half.at[:, pl.ds(piece * STEP, STEP)], out, rest.at[warpgroup], (low, high), corner)

    def write_some(self, half: Any, out: Any, rest: Any, bounds: tuple, corner: tuple) -> None:
        """Some rows, fewer than 64, of 64 columns."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        rest[...] = plgpu.load(half, layout=plgpu.Layout.WGMMA)
        plgpu.commit_smem()
        copy_rows(rest, out, bounds, corner)


def hide_rows(ref: Any, low: Any, high: Any) -> None:
    """Zero the rows of a tile of shared memory that are not from `low` to before `high`."""
    values = plgpu.load(ref, layout=plgpu.Layout.WGMMA)
    row = plgpu.layout_cast(lax.broadcasted_iota(jnp.int32, values.shape, 0), plgpu.Layout.WGMMA)
    ref[...] = jnp.where((row >= low) & (row < high), values, jnp.zeros_like(values))


def copy_rows(rest: Any, out: Any, bounds: tuple[Any, Any], corner: tuple[Any, Any]) -> None:
    """Copy rows within these bounds, not all, to a tile at `corner`: as ..., 16, 8, ... rows, whose shape is static."""
    done, high = bounds
    rows, power = high - done, rest.shape[0] // 2
    while power:
        target = out.at[pl.ds(corner[0] + done, power), pl.ds(corner[1], STEP)]
        copy = partial(plgpu.copy_smem_to_gmem, rest.at[pl.ds(done, power)], target)
        pl.when((rows & power) != 0)(copy)
        done = done + (rows & power)
        power //= 2


def _divided(dividend: Any, by: int) -> tuple[Any, Any]:
    return lax.div(dividend, jnp.int32(by)), lax.rem(dividend, jnp.int32(by))
