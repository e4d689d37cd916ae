"""Grouped matmul kernels for Hopper and Blackwell GPUs, in Pallas Mosaic GPU: one warpgroup loads by TMA, and others
multiply by wgmma, or one by tcgen05."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.choice import BLACKWELL, HOPPER, refused_by_gpu
from pallas_kernels.device import target
from pallas_kernels.grouped_matmul.blocks import all_row_blocks, longest_first
from pallas_kernels.grouped_matmul.mosaic.blackwell import TensorMemoryKernel
from pallas_kernels.grouped_matmul.mosaic.kernel import Kernel, Tiles, Work, run
from pallas_kernels.grouped_matmul.mosaic.tiles import ALIGN, ROWS, STEP, columns
from pallas_kernels.grouped_matmul.request import Request

__all__ = ["of_weights", "refusal", "times_weights"]


def refusal(request: Request) -> str | None:
    """None if the kernels support the request, otherwise the reason."""
    if (reason := refused_by_gpu(request, only=(HOPPER, BLACKWELL))) is not None:
        return reason
    if request.k % STEP or request.n % STEP:
        return f"its matrices have sides that are multiples of {STEP}, not {request.k} x {request.n}"
    return None


def times_weights(
    rows: jax.Array, weights: jax.Array, sizes: jax.Array, *, transposed: bool, interpret: bool = False
) -> jax.Array:
    """Like `reference.times_weights`."""
    m, wide = rows.shape[0], weights.shape[1 if transposed else 2]
    tiles = Tiles(columns(wide), "rows", transposed)
    blocks, steps = all_row_blocks(sizes, m, ROWS, rows.shape[1] // STEP, ALIGN)
    work, name = Work(*blocks, steps), "grouped_matmul_of_rows"
    return run(kind(), tiles, (rows, weights), work, (m, wide), rows.dtype, name=name, interpret=interpret)


def of_weights(rows: jax.Array, d_out: jax.Array, sizes: jax.Array, *, interpret: bool = False) -> jax.Array:
    """Like `reference.of_weights`."""
    order, start, end = longest_first(sizes, rows.shape[0])
    aligned = start // ALIGN * ALIGN
    low, high = start - aligned, end - aligned
    steps = jnp.where(end > start, (high + STEP - 1) // STEP, 0)
    work = Work(order, aligned, low, high, steps)
    tiles = Tiles(columns(d_out.shape[1]), "weights")
    shape, name = (sizes.shape[0], rows.shape[1], d_out.shape[1]), "grouped_matmul_of_weights"
    return run(kind(), tiles, (rows, d_out), work, shape, rows.dtype, name=name, interpret=interpret)


def kind() -> type[Kernel]:
    """The kernel of the GPU that is traced for."""
    return TensorMemoryKernel if target().compute_capability == BLACKWELL else Kernel
