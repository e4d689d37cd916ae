"""Sums of products on the tensor cores, as the device does them and as Mosaic GPU's simulator can do them."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from pallas_kernels.attention.mosaic.matmuls import product
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl

type Pair = tuple[Any, Any]
"""Two references to shared memory, which are multiplied."""


def on_device(*sums: tuple[jax.Array, *tuple[Pair, ...]]) -> tuple[jax.Array, ...]:
    """Each `total + the sum of a @ b` over its pairs; all are under way at a time."""

    def compute(accumulators: tuple[Any, ...]) -> None:
        for accumulator, (_, *pairs) in zip(accumulators, sums, strict=True):
            for a, b in pairs:
                plgpu.wgmma(accumulator, a, b)

    starts = tuple(plgpu.WGMMAAccumulatorRef.init(total) for total, *_ in sums)
    return lax.optimization_barrier(pl.run_state(compute)(starts))


def simulated(*sums: tuple[jax.Array, *tuple[Pair, ...]]) -> tuple[jax.Array, ...]:
    """The same one after another: the simulator knows no accumulator that starts from a value."""
    return tuple(total + sum(product(a, b) for a, b in pairs) for total, *pairs in sums)
