"""Tensor-core products of a warpgroup, as the device does them and as the simulator of Mosaic GPU can do them.

The simulator knows neither an operand in registers nor an accumulator that starts from a value. `Simulated` says the
same with a trip through shared memory and an addition; everything around it is the same kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp


def product(a: Any, b: Any, meanwhile: Callable[[], None] | None = None) -> jax.Array:
    """`a @ b` of two references to shared memory, in float32; `meanwhile` runs while the tensor cores do."""

    def compute(accumulator: Any) -> jax.Array:
        plgpu.wgmma(accumulator, a, b)
        if meanwhile is not None:
            meanwhile()
        return accumulator[...]

    return pl.run_scoped(compute, plgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[1]), jnp.float32))


def products(
    first: tuple[Any, Any], second: tuple[Any, Any], between: Callable[[], None]
) -> tuple[jax.Array, jax.Array]:
    """Two products at once; `between` runs after the first was issued, and the first is usable before the second."""

    def compute(one: Any, two: Any) -> tuple[jax.Array, jax.Array]:
        plgpu.wgmma(one, *first)
        between()
        plgpu.wgmma(two, *second)
        return plgpu.wgmma_accumulator_load(one, wait_n=1), two[...]

    accumulators = (plgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[1]), jnp.float32) for a, b in (first, second))
    return pl.run_scoped(compute, *accumulators)


def product_over_halves(pairs: tuple[tuple[Any, Any], ...]) -> jax.Array:
    """The sum of `a @ b` over pairs of references to shared memory."""

    def compute(accumulator: Any) -> jax.Array:
        for a, b in pairs:
            plgpu.wgmma(accumulator, a, b)
        return accumulator[...]

    return pl.run_scoped(compute, plgpu.WGMMAAccumulatorRef((pairs[0][0].shape[0], pairs[0][1].shape[1]), jnp.float32))


def _start(total: jax.Array) -> Any:
    """An accumulator that starts from a value; `run_state` gives the value that it ends with."""
    return plgpu.WGMMAAccumulatorRef.init(total)


class OnDevice:
    """Accumulates in place, with the first operand in registers."""

    needs_scratch = False

    @staticmethod
    def add(
        total: jax.Array, a: jax.Array, b: Any, scratch: Any, meanwhile: Callable[[], None] | None = None
    ) -> jax.Array:
        """`total + a @ b`, where a is a value and b a reference; `meanwhile` runs while the tensor cores do."""
        del scratch

        def compute(accumulator: Any) -> None:
            plgpu.wgmma(accumulator, a, b)
            if meanwhile is not None:
                meanwhile()

        return pl.run_state(compute)(_start(total))

    @staticmethod
    def add_shared(total: jax.Array, a: Any, b: Any) -> jax.Array:
        """`total + a @ b` of two references."""

        def compute(accumulator: Any) -> None:
            plgpu.wgmma(accumulator, a, b)

        return pl.run_state(compute)(_start(total))

    @staticmethod
    def add_to_global(target: Any, value: jax.Array, stage: Any) -> None:
        """Add `value` to global memory through shared memory, by TMA and without waiting: others may do the same."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        stage[...] = value
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(stage, target, reduction_op="add")


class Simulated:
    """The same through `scratch`, a reference of a's shape."""

    needs_scratch = True

    @staticmethod
    def add(
        total: jax.Array, a: jax.Array, b: Any, scratch: Any, meanwhile: Callable[[], None] | None = None
    ) -> jax.Array:
        scratch[...] = a
        plgpu.commit_smem()
        return total + product(scratch, b, meanwhile)

    @staticmethod
    def add_shared(total: jax.Array, a: Any, b: Any) -> jax.Array:
        return total + product(a, b)

    @staticmethod
    def add_to_global(target: Any, value: jax.Array, stage: Any) -> None:
        """Reads and writes: the simulator runs one program after the other."""
        stage[...] = target[...] + value
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(stage, target)
        plgpu.wait_smem_to_gmem(0)
