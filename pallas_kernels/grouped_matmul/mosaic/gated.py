"""The kernel of a gated feed-forward's first half: up and gate products of a tile, and SiLU(gate) * up * factor of its
rows, before anything leaves the registers.

It is the kernel of `kernel.py` with two right operands and two accumulators of 128 columns each: as many registers and
as much shared memory as one of 256 columns. What the backward needs, up and gate, is written beside the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.mosaic.memory import Loaded, tiled
from pallas_kernels.attention.mosaic.registers import across
from pallas_kernels.attention.mosaic.schedule import CONSUMERS, specialise
from pallas_kernels.grouped_matmul.mosaic.kernel import HALF, At, Kernel, Tiles, Work
from pallas_kernels.grouped_matmul.mosaic.tiles import SECTION, STEP
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl

COLUMNS = 128
STAGES = 3
ROOM = CONSUMERS * HALF
"""Rows that a tile may reach behind the last."""


class _Memory(NamedTuple):
    """In shared memory."""

    steps: Loaded
    """Of the sum: the left operand, a half for each consumer, and the two right ones."""
    out: Any
    """Two halves for each consumer, through which the three results leave."""
    rest: Any
    """As in `kernel.Memory`."""


class _Arrays(NamedTuple):
    """In global memory."""

    left: Any
    up: Any
    gate: Any
    factors: Any
    work: Work
    out: tuple[Any, Any, Any]
    """The result, up and gate."""


def run_gated(
    left: jax.Array, up: jax.Array, gate: jax.Array, factors: jax.Array, work: Work, programs: int, interpret: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(result, up, gate), in left's dtype. `factors` are float32, with `ROOM` more than there are rows."""
    shape = jax.ShapeDtypeStruct((left.shape[0], up.shape[2]), left.dtype)
    work = Work(*(jnp.pad(each, (0, -each.shape[0] % SECTION)) for each in work))  # without rows: nothing is done
    columns, count = -(-shape.shape[1] // COLUMNS), work.group.shape[0]
    programs = min(programs, count * columns)
    body = _Gated(Tiles(COLUMNS, "rows"), count, 1, columns, SECTION, programs, left.dtype)
    kernel = plgpu.kernel(
        body,
        out_type=(shape,) * 3,
        scratch_types={"memory": body.memory()},
        compiler_params=plgpu.CompilerParams(approx_math=True),
        grid=(programs,),
        grid_names=("program",),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        kernel_name="grouped_matmul_gated",
        interpret=interpret,
    )
    return kernel(left, up, gate, factors, *work)


@dataclass(frozen=True)
class _Gated(Kernel):
    def memory(self) -> Any:
        """The types of its shared memory."""
        right = tiled((STAGES, STEP, COLUMNS), self.dtype)
        types = tiled((STAGES * CONSUMERS, HALF, STEP), self.dtype), right, right
        ready = plgpu.Barrier(num_barriers=STAGES, num_arrivals=CONSUMERS + 2)
        return _Memory(
            steps=Loaded(types, ready, plgpu.Barrier(num_barriers=STAGES, num_arrivals=CONSUMERS)),
            out=tiled((2 * CONSUMERS, HALF, COLUMNS), self.dtype),
            rest=plgpu.SMEM((CONSUMERS, HALF, STEP), self.dtype),
        )

    def __call__(self, left: Any, *refs: Any, memory: Any) -> None:
        up, gate, factors, *rest = refs
        work, (made, kept_up, kept_gate) = Work(*rest[:5]), rest[5:]
        arrays = _Arrays(left, up, gate, factors, work, (made, kept_up, kept_gate))
        specialise(partial(self.consume, arrays, memory), partial(self.produce, arrays, memory))

    def produce(self, arrays: Any, memory: Any) -> None:
        def load_tile(at: At) -> None:
            def load(step: Any, _: None) -> None:
                slot = lax.rem(at.done + step, jnp.int32(STAGES))
                plgpu.barrier_wait(memory.steps.free.at[slot])
                ready, (left, *rights) = memory.steps.ready.at[slot], memory.steps.memory
                for half in range(CONSUMERS):
                    source = arrays.left.at[self.left(at, step, half)]
                    plgpu.copy_gmem_to_smem(source, left.at[slot * CONSUMERS + half], ready)
                for source, right in zip((arrays.up, arrays.gate), rights, strict=True):
                    plgpu.copy_gmem_to_smem(source.at[self.right(at, step)], right.at[slot], ready)

            lax.fori_loop(0, at.steps, load, None)

        self.for_each_tile(arrays.work, load_tile)
        for slot in range(STAGES):
            plgpu.barrier_wait(memory.steps.free.at[slot])

    def consume(self, arrays: Any, memory: Any, warpgroup: Any) -> None:
        for slot in range(STAGES):
            memory.steps.release(slot)
        self.for_each_tile(arrays.work, partial(self.multiply, arrays, memory, warpgroup))
        plgpu.wait_smem_to_gmem(0)

    def multiply(self, arrays: Any, memory: Any, warpgroup: Any, at: At) -> None:
        """This consumer's half of a tile."""

        def compute(*accumulators: Any) -> tuple[jax.Array, jax.Array]:
            lax.fori_loop(0, at.steps, partial(self.add, memory, warpgroup, at, accumulators), None)
            up, gate = accumulators
            return up[...], gate[...]

        zeros = plgpu.WGMMAAccumulatorRef((HALF, COLUMNS), jnp.float32)
        up, gate = pl.run_scoped(compute, zeros, plgpu.WGMMAAccumulatorRef((HALF, COLUMNS), jnp.float32))
        last = lax.rem(at.done + at.steps + STAGES - 1, jnp.int32(STAGES))
        pl.when(at.steps > 0)(lambda: memory.steps.release(last))
        rows = arrays.factors.at[pl.ds(at.start + warpgroup * HALF, HALF)]
        factors = plgpu.load(rows, layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)
        made = gate / (1.0 + jnp.exp(-gate)) * up * across(factors, gate.shape)
        for place, value in enumerate((up, gate, made)):
            half = memory.out.at[CONSUMERS * (place % 2) + warpgroup]
            if place != 1:  # what left through this half before has been read
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            half[...] = value.astype(self.dtype)
            plgpu.commit_smem()
            self.write(half, arrays.out[(place + 1) % 3], memory.rest, warpgroup, at)

    def add(self, memory: Any, warpgroup: Any, at: At, accumulator: Any, step: Any, _: None) -> None:
        """A step of both sums: they are under way while those of the step before end, whose slot is then free."""
        slot = lax.rem(at.done + step, jnp.int32(STAGES))
        memory.steps.wait(slot)
        left, *rights = memory.steps.memory
        for total, right in zip(accumulator, rights, strict=True):
            plgpu.wgmma(total, left.at[slot * CONSUMERS + warpgroup], right.at[slot])
        plgpu.wgmma_wait(2)
        pl.when(step > 0)(lambda: memory.steps.release(lax.rem(at.done + step + STAGES - 1, jnp.int32(STAGES))))
