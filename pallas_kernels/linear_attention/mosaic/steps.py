"""The steps of both kernels: a chunk forward, and its derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.attention.mosaic.registers import across, full, row_values
from pallas_kernels.linear_attention.chunk import CHUNK
from pallas_kernels.linear_attention.mosaic.operands import (
    COLUMN,
    COLUMNS,
    KEEP,
    READ,
    REMOVED,
    SCORES,
    WRITE,
    Operands,
)
from pallas_kernels.linear_attention.mosaic.passing import Staged
from pallas_kernels.pallas import mosaic_gpu as plgpu


def forward(
    operands: Operands, staged: Staged, out: Any, add: Callable[..., Any], delta: bool, at: Any, state: jax.Array
) -> jax.Array:
    """u = made - removed S, out = read S + scores u, S' = keep S + write^T u."""
    zeros = full((CHUNK, COLUMNS), 0.0)
    reading = (zeros, (operands.wait(at, READ), staged.state))
    u = operands.wait(at, COLUMN)
    if delta:
        made = plgpu.load(u, layout=plgpu.Layout.WGMMA).astype(jnp.float32)
        made, seen = add((made, (operands.wait(at, REMOVED), staged.state)), reading)
        u = staged.made
        u[...] = made.astype(u.dtype)
        operands.next(at, READ, COLUMN, REMOVED)
    else:
        (seen,) = add(reading)
        operands.next(at, READ)
    state, seen = add(
        (state * across(row_values(operands.wait(at, KEEP)), state.shape), (_transposed(operands.wait(at, WRITE)), u)),
        (seen, (operands.wait(at, SCORES), u)),
    )
    staged.out[...] = seen.astype(staged.out.dtype)
    operands.next(at, *([] if delta else [COLUMN]), WRITE, SCORES, KEEP)
    plgpu.copy_smem_to_gmem(staged.out, out)
    return state


def backward(
    operands: Operands, staged: Staged, out: Any, add: Callable[..., Any], delta: bool, at: Any, state: jax.Array
) -> jax.Array:
    """With G for the gradient of S', du = scores^T dout + write G, and dS = keep G + read^T dout - removed^T du.

    The operand of values is dout; `state` is G, and du goes `out`.
    """
    d_out = operands.wait(at, COLUMN)
    keep = across(row_values(operands.wait(at, KEEP)), state.shape)
    d_u, state = add(
        (
            full((CHUNK, COLUMNS), 0.0),
            (_transposed(operands.wait(at, SCORES)), d_out),
            (operands.wait(at, WRITE), staged.state),
        ),
        (state * keep, (_transposed(operands.wait(at, READ)), d_out)),
    )
    staged.out[...] = d_u.astype(staged.out.dtype)
    operands.next(at, COLUMN, KEEP, SCORES, WRITE, READ)
    plgpu.copy_smem_to_gmem(staged.out, out)
    if delta:
        (state,) = add((state, (_transposed(operands.wait(at, REMOVED)), staged.out)))
        operands.next(at, REMOVED)
    return state


def _transposed(ref: Any) -> Any:
    return ref.transpose((1, 0))
