"""Attention of rows in parts, as the ranks of a ring compute it, on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpar.attention.ring import merge
from pallas_kernels.attention import ForwardBackward, MaskInputs, Settings, compute_delta


def zigzag(seq: int, ranks: int) -> np.ndarray:
    """Slots [seq] in the order in which `ranks` parts hold them: each has one of the first pieces of a row, and the one
    as far from the end. `seq` is a multiple of twice the ranks, where there are several."""
    if ranks == 1:
        return np.arange(seq, dtype=np.int32)
    pieces = np.arange(seq, dtype=np.int32).reshape(2 * ranks, -1)
    return np.concatenate([pieces[[rank, -1 - rank]].reshape(-1) for rank in range(ranks)])


def in_parts(
    kernels: ForwardBackward, settings: Settings, ranks: int, indices: np.ndarray, segments: np.ndarray | None
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """(q, k, v) -> output and log-sum-exp, differentiable: each part's queries over each part's keys.

    The parts lie in the batch, and in each step have another part's keys. Forwards are merged by their log-sum-exp, and
    what backwards contribute is added, in float32.
    """
    part = len(indices) // ranks
    settings = replace(settings, run=part // 2, results="float32")
    apart = lambda x: x.reshape(-1, part, *x.shape[2:])
    together = lambda x: x.reshape(-1, part * ranks, *x.shape[2:])

    def passed(x: jax.Array, step: jax.Array | int) -> jax.Array:
        """Parts [batch x ranks, part, ...] shifted so that each rank has the part of the rank so many before it."""
        return jnp.roll(x.reshape(-1, ranks, *x.shape[1:]), step, axis=1).reshape(x.shape)

    def tokens(batch: int, step: jax.Array) -> MaskInputs:
        rows = [jnp.broadcast_to(jnp.asarray(x), (batch, len(indices))) for x in (indices, segments) if x is not None]
        pairs = [(apart(row), passed(apart(row), step)) for row in rows]
        return MaskInputs(*(x for pair in pairs for x in pair))

    def forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        queries, keys, values = map(apart, (q, k, v))

        def step(found: Any, number: jax.Array) -> tuple[Any, None]:
            given = passed(keys, number), passed(values, number), tokens(len(q), number)
            return merge(found, kernels.forward(settings, queries, *given)), None

        lse = jnp.full(queries.shape[:3], -jnp.inf)
        start = jnp.zeros((*queries.shape[:3], v.shape[3]), jnp.float32), lse
        (out, lse), _ = jax.lax.scan(step, start, jnp.arange(ranks))
        return together(out).astype(q.dtype), together(lse)

    def keeping(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        out, lse = forward(q, k, v)
        return (out, lse), (q, k, v, out, lse)

    def backward(kept: tuple[jax.Array, ...], cotangents: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        (q, k, v, out, lse), (d_out, d_lse) = kept, cotangents
        delta = compute_delta(out, d_out, lse, d_lse)
        queries, keys, values, *of_queries = map(apart, (q, k, v, lse, delta, d_out))

        def step(sums: tuple[jax.Array, ...], number: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
            given = passed(keys, number), passed(values, number), tokens(len(q), number)
            dq, dk, dv = kernels.backward(settings, queries, *given, *of_queries)
            found = dq, passed(dk, -number), passed(dv, -number)
            return tuple(a + b for a, b in zip(sums, found, strict=True)), None

        start = tuple(jnp.zeros(x.shape, jnp.float32) for x in (queries, keys, values))
        sums, _ = jax.lax.scan(step, start, jnp.arange(ranks))
        return tuple(together(d).astype(x.dtype) for d, x in zip(sums, (q, k, v), strict=True))

    attend = jax.custom_vjp(forward)
    attend.defvjp(keeping, backward)
    return attend
