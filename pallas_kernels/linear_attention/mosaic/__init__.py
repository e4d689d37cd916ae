"""Linear attention kernels for Hopper GPUs, in Pallas Mosaic GPU: a warpgroup takes a state through all chunks.

In the forward a chunk is u = made - removed S, out = read S + scores u and S' = keep S + write^T u. The products with S
are under way together, then those with u. The next operands arrive meanwhile. S is in registers in float32, and in
shared memory as it is multiplied.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.attention.mosaic.matmuls import product
from pallas_kernels.choice import HOPPER, refused_by_gpu
from pallas_kernels.linear_attention.chunk import CHUNK, Chunk, Passed
from pallas_kernels.linear_attention.mosaic import steps
from pallas_kernels.linear_attention.mosaic.operands import COLUMNS
from pallas_kernels.linear_attention.mosaic.passing import pass_state
from pallas_kernels.linear_attention.request import Request
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl

__all__ = ["backward", "forward", "refusal"]

KEYS = (64, 128, 192, 256)
"""Widths of keys, whose states fit into registers."""


def refusal(request: Request) -> str | None:
    """None if the kernels support the request, otherwise the reason."""
    if (reason := refused_by_gpu(request, only=(HOPPER,), dtypes=("bfloat16",))) is not None:
        return reason
    if request.key not in KEYS:
        return f"its keys have {', '.join(map(str, KEYS[:-1]))} or {KEYS[-1]} dims, not {request.key}"
    if request.value % COLUMNS:
        return f"its values have a multiple of {COLUMNS} dims, not {request.value}"
    if request.size != CHUNK:
        return f"its chunks have {CHUNK} tokens, not {request.size}"
    return None


def forward(chunks: Chunk, state: Float[Array, "heads key value"], *, save: bool, interpret: bool) -> Passed:
    """Outputs of chunks [chunks, heads, ...], the states before each, if they are to be saved, and that behind all."""
    return pass_state(
        steps.forward, _added(chunks), state, name="forward", reverse=False, save=save, **_launch(interpret)
    )


def backward(chunks: Chunk, d_end: Float[Array, "heads key value"], *, interpret: bool) -> Passed:
    """Gradients of `made`, of the state behind each chunk, and of the first one; `chunks` has that of the outputs in
    the place of `made`."""
    return pass_state(
        steps.backward, _added(chunks), d_end, name="backward", reverse=True, save=True, **_launch(interpret)
    )


def _added(chunks: Chunk) -> Chunk:
    """With what is removed negative: products add up."""
    return chunks._replace(removed=jax.tree.map(lambda x: -x, chunks.removed))


def _launch(interpret: bool) -> dict[str, Any]:
    if interpret:
        return {"add": _simulated, "interpret": plgpu.InterpretGPUParams(detect_races=True)}
    return {"add": _on_device, "interpret": None}


type _Pair = tuple[Any, Any]
"""Two references to shared memory, which are multiplied."""


def _on_device(*sums: tuple[jax.Array, *tuple[_Pair, ...]]) -> tuple[jax.Array, ...]:
    """Each `total + the sum of a @ b` over its pairs; all are under way at a time."""

    def compute(accumulators: tuple[Any, ...]) -> None:
        for accumulator, (_, *pairs) in zip(accumulators, sums, strict=True):
            for a, b in pairs:
                plgpu.wgmma(accumulator, a, b)

    starts = tuple(plgpu.WGMMAAccumulatorRef.init(total) for total, *_ in sums)
    return lax.optimization_barrier(pl.run_state(compute)(starts))


def _simulated(*sums: tuple[jax.Array, *tuple[_Pair, ...]]) -> tuple[jax.Array, ...]:
    """The same one after another: the simulator knows no accumulator that starts from a value."""
    return tuple(total + sum(product(a, b) for a, b in pairs) for total, *pairs in sums)
