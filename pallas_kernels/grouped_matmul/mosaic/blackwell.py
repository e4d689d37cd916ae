"""The products of `pallas_kernels.grouped_matmul.mosaic.kernel` on Blackwell GPUs, whose tensor cores sum in tensor
memory.

The tiles and their order are a Hopper's. A program is three warpgroups: one loads by TMA, one issues the products of
128 rows and all columns of a tile, one writes what was summed; there are two sums, so that a tile is written while the
next is multiplied. Where rows beside a group have to be zeroed (gradients of weights), a fourth warpgroup does that
between the first two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.mosaic.memory import Loaded, tiled
from pallas_kernels.grouped_matmul.mosaic.kernel import Arrays, At, Kernel, copy_rows, hide_rows
from pallas_kernels.grouped_matmul.mosaic.tiles import ROWS, STEP
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl

STAGES = {256: 4, 192: 4, 128: 6}
"""Steps in shared memory: as many as fit into 227 KiB beside two pieces of the result."""
SUMS = 2
"""Sums in tensor memory, of 512 columns."""


class Memory(NamedTuple):
    """Buffers in shared memory, sums in tensor memory, and the barriers between warpgroups."""

    steps: Loaded
    """Operands of each step."""
    hidden: Any
    """A barrier a slot: what is beside the group is zero; None where that is not read."""
    sums: Any
    summed: Any
    """A barrier a sum: all products of a tile have been added."""
    stored: Any
    """A barrier a sum: it has been read."""
    out: Any
    """64 columns of the result."""
    rest: Any
    """The same in plain order, from which any number of rows can be copied; None if tiles are always full."""


@dataclass(frozen=True)
class TensorMemoryKernel(Kernel):
    """The kernel: each program of the launch computes its tiles one after the other."""

    @property
    def threads(self) -> int:
        return 3 if self.tiles.of == "rows" else 4

    @property
    def slots(self) -> int:
        return STAGES[self.tiles.columns]

    def memory(self) -> Any:
        slots, wide, dtype, of_rows = self.slots, self.tiles.columns, self.dtype, self.tiles.of == "rows"
        right = (slots, wide, STEP) if self.tiles.transposed else (slots, STEP, wide)
        types = tiled((slots, ROWS, STEP) if of_rows else (slots, STEP, ROWS), dtype), tiled(right, dtype)
        barriers = lambda count, **kind: plgpu.Barrier(num_barriers=count, **kind)
        return Memory(
            steps=Loaded(types, barriers(slots, num_arrivals=2), barriers(slots, orders_tensor_core=True)),
            hidden=None if of_rows else barriers(slots),
            sums=plgpu.TMEM((ROWS, SUMS * wide), jnp.float32),
            summed=barriers(SUMS, orders_tensor_core=True),
            stored=barriers(SUMS, orders_tensor_core=True),
            out=tiled((ROWS, STEP), dtype),
            rest=plgpu.SMEM((ROWS, STEP), dtype) if of_rows else None,
        )

    def __call__(self, left: Any, right: Any, *refs: Any, memory: Any) -> None:
        arrays = Arrays.of(left, right, refs)
        for warpgroup, role in enumerate((self.load, self.multiply_tile, self.store, self.hide)[: self.threads]):

            @pl.when(lax.axis_index("warpgroup") == warpgroup)
            def _(role: Any = role) -> None:
                self.begin(role, memory)
                self.for_each_tile(arrays.work, partial(role, arrays, memory))
                self.end(role, memory)

    def begin(self, role: Any, memory: Memory) -> None:
        """Signal that slots and sums are free."""
        if role == self.multiply_tile:
            memory.steps.release_all()
        elif role == self.store:
            for sums in range(SUMS):
                plgpu.barrier_arrive(memory.stored.at[sums])

    def end(self, role: Any, memory: Memory) -> None:
        """Wait for what a warpgroup has begun."""
        if role == self.load:
            memory.steps.drain()
        elif role == self.multiply_tile:
            for sums in range(SUMS):
                plgpu.barrier_wait(memory.stored.at[sums])
        elif role == self.store:
            plgpu.wait_smem_to_gmem(0)

    def load(self, arrays: Arrays, memory: Memory, at: At) -> None:
        def step(index: Any, _: None) -> None:
            slot = memory.steps.slot(at.done + index)
            memory.steps.load(
                slot, arrays.left.at[self.left_rows(at, index, ROWS)], arrays.right.at[self.right(at, index)]
            )

        lax.fori_loop(0, at.steps, step, None)

    def multiply_tile(self, arrays: Arrays, memory: Memory, at: At) -> None:
        """Issue the products of a tile, each of which frees its slot when it ends."""
        del arrays
        sums = lax.rem(at.index, jnp.int32(SUMS))
        plgpu.barrier_wait(memory.stored.at[sums])
        wanted = memory.steps.ready if memory.hidden is None else memory.hidden

        def step(index: Any, _: None) -> None:
            slot = memory.steps.slot(at.done + index)
            plgpu.barrier_wait(wanted.at[slot])
            left, right = memory.steps.at(slot)
            left = left if self.tiles.of == "rows" else left.transpose((1, 0))
            right = right.transpose((1, 0)) if self.tiles.transposed else right
            plgpu.tcgen05_mma(self.sum_of(memory, sums), left, right, memory.steps.free.at[slot], accumulate=index > 0)

        lax.fori_loop(0, at.steps, step, None)
        plgpu.tcgen05_commit_arrive(memory.summed.at[sums])

    def sum_of(self, memory: Memory, sums: Any, first: int = 0, columns: int | None = None) -> Any:
        """Columns of a sum in tensor memory."""
        wide = self.tiles.columns
        return memory.sums.at[:, pl.ds(sums * wide + first, columns or wide)]

    def hide(self, arrays: Arrays, memory: Memory, at: At) -> None:
        """Zero what is loaded beside the group, in both operands: it may be infinite or no number."""
        del arrays

        def step(index: Any, _: None) -> None:
            slot = memory.steps.slot(at.done + index)
            memory.steps.wait(slot)
            low, high = at.low - index * STEP, at.high - index * STEP

            @pl.when((low > 0) | (high < STEP))
            def _() -> None:
                for operand in memory.steps.at(slot):
                    for piece in range(operand.shape[-1] // STEP):
                        hide_rows(operand.at[:, pl.ds(piece * STEP, STEP)], low, high)
                plgpu.commit_smem()

            plgpu.barrier_arrive(memory.hidden.at[slot])

        lax.fori_loop(0, at.steps, step, None)

    def store(self, arrays: Arrays, memory: Memory, at: At) -> None:
        """Write the sums of a tile, 64 columns at a time; zeros where there was nothing to add."""
        sums, pieces = lax.rem(at.index, jnp.int32(SUMS)), self.tiles.columns // STEP
        summed = jnp.where(at.steps > 0, jnp.int32(ROWS), 0)
        plgpu.barrier_wait(memory.summed.at[sums])
        for piece in range(pieces):
            value = plgpu.async_load_tmem(self.sum_of(memory, sums, piece * STEP, STEP), layout=plgpu.Layout.TCGEN05)
            row = plgpu.layout_cast(lax.broadcasted_iota(jnp.int32, value.shape, 0), plgpu.Layout.TCGEN05)
            value = jnp.where(row < summed, value, jnp.zeros_like(value)).astype(self.dtype)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            self.write_piece(arrays.out, memory, value, at, at.column + piece * STEP)
        plgpu.wait_load_tmem()
        plgpu.barrier_arrive(memory.stored.at[sums])

    def write_piece(self, out: Any, memory: Memory, value: jax.Array, at: At, column: Any) -> None:
        """Copy 64 columns of a tile to global memory, of a tile of rows only those of its group."""
        columns = pl.ds(column, STEP)
        if self.tiles.of == "weights":
            memory.out[...] = value
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(memory.out, out.at[at.group, pl.ds(at.side, ROWS), columns])
            return

        @pl.when((at.low == 0) & (at.high == ROWS))
        def _() -> None:
            memory.out[...] = value
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(memory.out, out.at[pl.ds(at.start, ROWS), columns])

        @pl.when((at.low < at.high) & (at.high - at.low < ROWS))
        def _() -> None:
            memory.rest[...] = value
            plgpu.commit_smem()
            copy_rows(memory.rest, out, (at.low, at.high), (at.start, column))
