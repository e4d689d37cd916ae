"""Comparison of cuDNN's packed layout (several documents in a row) with plain XLA, on the device at hand.

The layout is reached through a private function of JAX that only a few of JAX's tests call, so neither its presence nor
a version shows that it is correct. `compare` runs both on small rows, in a few seconds; `verdict` returns the result
that was settled. `pallas_kernels.verified` records only kernels whose source is in this repository.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.attention import cudnn_packed, reference
from pallas_kernels.attention.packed_room import Room
from pallas_kernels.attention.request import Request

NOT_COMPARED = (
    "its packed layout is used only where it was compared with plain XLA on the device at hand "
    "(pallas_kernels.attention.comparison.compare), and it was not"
)
_LENGTH = 2048
"""Tokens of the rows that are compared, at most."""
_ROOM = Room(forward=4, backward=4, rows=2, kv_heads=2)
"""Documents of a row that one call may have: fewer than the rows compared have, so that some take several calls."""

type _Kind = tuple[Any, ...]
_differences: dict[_Kind, str | None] = {}


def verdict(request: Request) -> str | None:
    """Why the comparison forbids such a request, in a clause; None if it does not, or if the caller still compares."""
    kind = _kind(request)
    if kind in _differences:
        return _differences[kind]
    return None if request.compares else NOT_COMPARED


def compared(request: Request) -> bool:
    """Whether a verdict on such requests was settled."""
    return _kind(request) in _differences


def settle(request: Request, why_not: str | None) -> None:
    """Store the verdict on such requests, on which the caller has made the processes of a job agree."""
    _differences[_kind(request)] = why_not


def compare(request: Request) -> str | None:
    """The difference of cuDNN's output and gradients from plain XLA's for a request, or why cuDNN does not run, in a
    clause; None where they agree: no error against float32 is above twice that of plain XLA in the same dtype."""
    try:
        return _difference(request)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
        return f"its packed layout does not run on this device: {str(error).strip().splitlines()[0][:200]}"


def _kind(request: Request) -> _Kind:
    group = request.heads // request.kv_heads
    windowed = request.mask.window is not None
    widths = request.width, request.value_width
    return request.gpu, request.processors, request.dtype, widths, group, windowed, request.deterministic


def _difference(request: Request) -> str | None:
    arrays, segments = _inputs(request)
    scale = request.scale or request.width**-0.5
    window = None if request.mask.window is None else min(request.mask.window, arrays[0].shape[1] // 3)
    packed = partial(cudnn_packed.attend, segments=segments, scale=scale, window=window, room=_ROOM)
    indices = jnp.broadcast_to(jnp.arange(segments.shape[1], dtype=jnp.int32), segments.shape)
    mask = type(request.mask)(causal=True, window=window, segmented=True)
    plain = partial(
        reference.attention, mask=mask, q_indices=indices, kv_indices=indices, q_segments=segments,
        kv_segments=segments, scale=scale,
    )  # fmt: skip
    have, low = (_results(attend, arrays) for attend in (packed, plain))
    with jax.default_matmul_precision("highest"):
        wanted = _results(plain, [x.astype(jnp.float32) for x in arrays])
    for name, *three in zip(("output", "dq", "dk", "dv"), have, low, wanted, strict=True):
        error, usual = (_error(x, three[2]) for x in three[:2])
        if not error <= 2 * usual + 1e-6:
            return (
                f"its packed layout differs from plain XLA on this device: {name} errs by {error:.2g} of the largest "
                f"value, plain XLA in {request.dtype} by {usual:.2g}"
            )
    return None


def _results(attend: Any, arrays: Any) -> list[np.ndarray]:
    def program(q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array) -> tuple[jax.Array, ...]:
        out, pull = jax.vjp(attend, q, k, v)
        return out, *pull(d_out)

    return [np.asarray(x, np.float32) for x in jax.jit(program)(*arrays)]


def _error(have: np.ndarray, wanted: np.ndarray) -> float:
    """max|difference| / max|wanted|; infinite where something is not finite."""
    difference = np.abs(have - wanted)
    return float(difference.max() / max(np.abs(wanted).max(), 1e-30)) if np.isfinite(difference).all() else np.inf


def _inputs(request: Request) -> tuple[list[jax.Array], jax.Array]:
    """Two rows: one of many short documents and padding, one of a long document between short ones."""
    rng, length = np.random.default_rng(0), min(_LENGTH, request.queries)
    group = request.heads // request.kv_heads
    width, value_width = request.width, request.value_width
    draw = lambda heads, width: jnp.asarray(rng.normal(size=(2, length, heads, width)), request.dtype)
    short = np.minimum(np.arange(length) * 11 // length + 1, 11)
    long = np.searchsorted([length // 9, length // 7, length - length // 6], np.arange(length), side="right") + 1
    segments = np.stack([np.where(short == 11, 0, short), long])
    arrays = [draw(2 * group, width), draw(2, width), draw(2, value_width), draw(2 * group, value_width)]
    return arrays, jnp.asarray(segments, jnp.int32)
