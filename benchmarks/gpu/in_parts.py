"""Attention of rows in parts, as the ranks of a ring compute it, on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpar.attention.ring import merge
from pallas_kernels.attention import Kernels, Settings, Tokens, output_products


def zigzag(seq: int, ranks: int) -> np.ndarray:
    """Slots [seq] in the order in which `ranks` parts hold them: each has one of the first pieces of a row, and the one
    as far from the end. `seq` is a multiple of twice the ranks, where there are several."""
    if ranks == 1:
        return np.arange(seq, dtype=np.int32)
    pieces = np.arange(seq, dtype=np.int32).reshape(2 * ranks, -1)
    return np.concatenate([pieces[[rank, -1 - rank]].reshape(-1) for rank in range(ranks)])


def in_parts(
    kernels: Kernels, settings: Settings, ranks: int, slots: np.ndarray, segments: np.ndarray | None
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """(q, k, v) -> output and log-sum-exp, differentiable: each part's queries over each part's keys.

    Forwards are merged by their log-sum-exp, and what backwards contribute is added, in the results' dtype.
    """
    part = len(slots) // ranks
    settings = replace(settings, run=part // 2)
    cut = lambda x, rank: x[:, rank * part : (rank + 1) * part]
    whole = lambda rows, batch: jnp.broadcast_to(jnp.asarray(rows), (batch, len(slots)))
    every = range(ranks)

    def tokens(batch: int, of_queries: int, of_keys: int) -> Tokens:
        places = [cut(whole(slots, batch), rank) for rank in (of_queries, of_keys)]
        if segments is None:
            return Tokens(*places)
        return Tokens(*places, *(cut(whole(segments, batch), rank) for rank in (of_queries, of_keys)))

    def forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        over = lambda r, s: kernels.forward(settings, cut(q, r), cut(k, s), cut(v, s), tokens(len(q), r, s))
        rows = [reduce(merge, (over(r, s) for s in every)) for r in every]
        out, lse = (jnp.concatenate(parts, axis=1) for parts in zip(*rows, strict=True))
        return out.astype(q.dtype), lse

    def keeping(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        out, lse = forward(q, k, v)
        return (out, lse), (q, k, v, out, lse)

    def backward(kept: tuple[jax.Array, ...], cotangents: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        (q, k, v, out, lse), (d_out, d_lse) = kept, cotangents
        inner = output_products(out, d_out, lse, d_lse)
        shares = {
            (r, s): kernels.backward(
                settings, cut(q, r), cut(k, s), cut(v, s), tokens(len(q), r, s),
                cut(lse, r), cut(inner, r), cut(d_out, r),
            )
            for r in every for s in every
        }  # fmt: skip
        dq = [sum(shares[r, s][0] for s in every) for r in every]
        dk, dv = ([sum(shares[r, s][which] for r in every) for s in every] for which in (1, 2))
        joined = (jnp.concatenate(parts, axis=1) for parts in (dq, dk, dv))
        return tuple(d.astype(x.dtype) for d, x in zip(joined, (q, k, v), strict=True))

    attend = jax.custom_vjp(forward)
    attend.defvjp(keeping, backward)
    return attend
