"""The kernels for Hopper GPUs: tiles of the result of one group, as in `pallas_kernels.grouped_matmul`, each a sum of
products of 128 codes that are scaled and added up in float32 registers, as in `pallas_kernels.tiled_matmul`.

Rows times matrices: tiles begin where their group begins, or up to 7 rows before, at a multiple of 8. What a tile loads
before and behind its group is multiplied with the group's matrix too, and not written: a row's sum has nothing of
another row.

Gradients of matrices sum over the rows of a group, of which each has whole tiles: nothing else is loaded. The units of
a Hopper sum along neighbouring bytes alone, so both operands come transposed within each tile of 128 rows, in which
order XLA writes them where it quantizes; to transpose the whole would take it another pass over the codes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.attention.mosaic.schedule import TILE
from pallas_kernels.choice import HOPPER, INDEXED, refused_by_gpu
from pallas_kernels.grouped_matmul.blocks import all_row_blocks, longest_first
from pallas_kernels.grouped_matmul.mosaic.kernel import Work, run
from pallas_kernels.grouped_matmul.mosaic.tiles import ALIGN
from pallas_kernels.grouped_tiled_matmul.request import Request
from pallas_kernels.tiled_matmul.mosaic import STEP, TiledKernel, tiles_of


def refusal(request: Request) -> str | None:
    """None if the kernel supports the request, otherwise the reason."""
    if (reason := refused_by_gpu(request, only=(HOPPER,), dtypes=("bfloat16",))) is not None:
        return reason
    cut, fits = ("squares", request.squares) if request.of == "rows" else ("tiles", True)
    if request.n % TILE or request.k % TILE or request.tile != STEP or not fits:
        return f"sides of matrices are multiples of {TILE}, cut into {cut} of {STEP}, not {request}"
    if max(request.m * max(request.k, request.n), request.groups * request.n * request.k) >= INDEXED:
        return f"its arrays have at most 2^31 - 1 elements, which {request} exceeds"
    return None


def grouped_tiled_matmul(
    rows: Shaped[Array, "m k"],
    row_scales: Float[Array, "m tiles"],
    weights: Shaped[Array, "groups n k"],
    weight_scales: Float[Array, "groups row_tiles tiles"],
    sizes: Int[Array, " groups"],
    dtype: Any,
    *,
    interpret: bool = False,
) -> Float[Array, "m n"]:
    """Like `api.grouped_tiled_matmul`."""
    (m, k), n = rows.shape, weights.shape[1]
    blocks, steps = all_row_blocks(sizes, m, TILE, k // STEP, ALIGN)
    work, name = Work(*blocks, steps), "grouped_matmul_of_tiles"
    # A step's scales side by side, in rows of whole 16 bytes, as TMA loads them; it loads no single number, so that a
    # square's scale is repeated for its rows: 3% of the bytes of the codes.
    of_rows = jnp.pad(row_scales.astype(jnp.float32), ((0, -m % ALIGN), (0, 0))).T
    of_weights = jnp.repeat(weight_scales.astype(jnp.float32), n // weight_scales.shape[1], axis=1).mT
    arrays = rows, weights, of_rows, of_weights
    kind = partial(TiledKernel, forms=(rows.dtype, weights.dtype), squares=True, complete=False)
    return run(kind, tiles_of(n, "rows"), arrays, work, (m, n), dtype, name=name, interpret=interpret)


def of_weights(
    rows: Shaped[Array, "m k"],
    row_scales: Float[Array, "tiles k"],
    d_out: Shaped[Array, "m n"],
    d_out_scales: Float[Array, "tiles n"],
    sizes: Int[Array, " groups"],
    dtype: Any,
    *,
    interpret: bool = False,
) -> Float[Array, "groups k n"]:
    """Like `api.grouped_tiled_weight_gradients`."""
    order, start, end = longest_first(sizes, rows.shape[0])
    work = Work(order, start, jnp.zeros_like(start), end - start, (end - start) // STEP)
    transposed = lambda quantized: quantized.reshape(-1, STEP, quantized.shape[1]).mT
    arrays = transposed(rows), transposed(d_out), row_scales.astype(jnp.float32), d_out_scales.astype(jnp.float32)
    shape, name = (sizes.shape[0], rows.shape[1], d_out.shape[1]), "grouped_matmul_of_weight_tiles"
    kind, tiles = partial(TiledKernel, forms=(rows.dtype, d_out.dtype)), tiles_of(d_out.shape[1], "weights")
    return run(kind, tiles, arrays, work, shape, dtype, name=name, interpret=interpret)
