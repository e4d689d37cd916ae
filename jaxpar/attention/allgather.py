"""Context parallelism by gathering: each rank attends with its queries over the keys of the whole row."""

from __future__ import annotations

from dataclasses import replace

import jax
from jaxtyping import Array, Float

from jaxpar.attention.backends import merged
from jaxpar.attention.row import ContextAttention, RowTokens
from jaxpar.attention.sinks import with_sinks
from jaxpar.mesh.collectives import gather_context, scatter_context
from pallas_kernels.attention import Settings, compute_delta, name_residuals
from pallas_kernels.attention.derivative import OutputAndLse
from pallas_kernels.attention.registry import Implementation
from pallas_kernels.varying import vary_alike
from pallas_kernels.vjp_parts import custom_vjp


def allgather(
    how: ContextAttention,
    q: Float[Array, "batch part heads width"],
    k: Float[Array, "batch part kv_heads width"],
    v: Float[Array, "batch part kv_heads width"],
    row: RowTokens,
    sinks: Float[Array, " heads"] | None = None,
) -> Float[Array, "batch part heads width"]:
    """Gather keys and values over the context axis, then attend with this rank's queries.

    Source: the context parallelism of the Kuaishou system (USENIX ATC'24). The value's gather can hide under the
    projection of the key, the key's under that of the query, and the sums of their gradients under the matmuls next to
    them. Nothing gathered is kept: the backward gathers again. With n = context a device sends `(k + v) * (n - 1)`
    bytes of its local k and v in the forward and twice that in the backward.
    """
    # Every rank sees all keys, in any order, so the layout does not matter.
    static = how.backend, replace(how.settings, results="inputs")  # the log-sum-exp is not needed: nothing is merged
    out, lse = _attend(static, *vary_alike((q, k, v, row)))
    return with_sinks(out, lse, sinks)


type _Static = tuple[Implementation, Settings]


def _forward(static: _Static, q: jax.Array, k: jax.Array, v: jax.Array, row: RowTokens) -> tuple[OutputAndLse, tuple]:
    backend, settings = static
    tokens = row.seen(settings.mask, None, None)
    out, lse = merged(backend).forward(settings, q, gather_context(k), gather_context(v), tokens)
    out, lse = name_residuals(out.astype(q.dtype), lse)
    return (out, lse), (q, k, v, row, out, lse)


def _backward(static: _Static, residuals: tuple, cotangents: OutputAndLse) -> tuple:
    backend, settings = static
    (q, k, v, row, out, lse), (d_out, d_lse) = residuals, cotangents
    dq, dk, dv = merged(backend).backward(
        settings, q, gather_context(k), gather_context(v), row.seen(settings.mask, None, None),
        lse, compute_delta(out, d_out, lse, d_lse), d_out,
    )  # fmt: skip
    return dq.astype(q.dtype), scatter_context(dk.astype(k.dtype)), scatter_context(dv.astype(v.dtype)), None


@custom_vjp(0)
def _attend(static: _Static, q: jax.Array, k: jax.Array, v: jax.Array, row: RowTokens) -> OutputAndLse:
    return _forward(static, q, k, v, row)[0]


_attend.defvjp(_forward, _backward)
