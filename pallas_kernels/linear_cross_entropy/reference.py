"""Cross-entropy of a linear head in plain JAX, a chunk of the vocabulary at a time: what kernels are held to.

Matmuls are in the input dtype and accumulate in float32; logits, their statistics and loss are float32. Holds the
float32 logits of one chunk, and with `Head.keep` what is kept of all of them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.linear_cross_entropy.head import Head, Statistics, live, merge
from pallas_kernels.linear_cross_entropy.saved_logits import SavedLogits, Token, rounded


def statistics(
    head: Head,
    x: Float[Array, "tokens embed"],
    table: Float[Array, "..."],
    labels: Int[Array, " tokens"],
    columns: Int[Array, " one"],
) -> tuple[Statistics, SavedLogits | None]:
    """Statistics of every token over the columns of this shard; `labels` are local columns (`Head.local_labels`).

    With `head.keep`, also the logits saved for the backward.
    """
    chunks = head.chunks(table, x.shape[0], 4)

    def of_chunk(first: jax.Array | int, width: int) -> tuple[Statistics, tuple[jax.Array, jax.Array] | None]:
        logits = head.cap(head.product(x, head.part(table, columns, first, width)))
        hit = labels[:, None] == first + jnp.arange(width)
        logits = jnp.where(live(columns, first, width), logits, -jnp.inf)
        peak = logits.max(-1)
        base = jnp.where(peak == -jnp.inf, 0.0, peak)
        label = jnp.where(hit, logits, 0.0).sum(-1)
        values = jnp.exp(logits - base[:, None])
        saved = rounded(values, base[:, None], x.dtype) if head.keep else None
        return Statistics(peak, values.sum(-1), label), saved

    step = lambda _, index: (None, of_chunk(index * chunks.width, chunks.width))
    parts, saved_chunks = lax.scan(step, None, jnp.arange(chunks.full))[1]
    end = None
    if chunks.rest:
        last, end = of_chunk(chunks.full * chunks.width, chunks.rest)
        parts = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), parts, last)
    return merge(parts), _joined(saved_chunks, end, chunks.width) if head.keep else None


def _joined(full: Any, rest: Any, width: int) -> SavedLogits:
    """Join the saved logits of full chunks [chunk, tokens, ...] with those of the last partial one [tokens, ...]."""
    values, bases = jnp.moveaxis(full[0], 0, 1).reshape(full[0].shape[1], -1), full[1][..., 0]
    if rest is not None:
        values, bases = jnp.concatenate([values, rest[0]], axis=1), jnp.concatenate([bases, rest[1].T])
    return SavedLogits(values, bases, width)


def logit_gradients(
    head: Head,
    x: Float[Array, "tokens embed"],
    table: Float[Array, "..."],
    labels: Int[Array, " tokens"],
    columns: Int[Array, " one"],
    token: Token,
    chunk: jax.Array | int,
    stride: int,
    width: int,
) -> Float[Array, "tokens width"]:
    """Gradients of the logits before the cap of the `width` columns from `chunk * stride` on, in x's dtype.

    The label's logit, `token.label`, is not used: it is among the logits.
    """
    (lse, of_lse, of_label, _), first = token, chunk * stride
    logits = head.cap(head.product(x, head.part(table, columns, first, width)))
    hit = labels[:, None] == first + jnp.arange(width)
    gradients = of_lse[:, None] * jnp.exp(logits - lse[:, None]) - jnp.where(hit, of_label[:, None], 0.0)
    if head.softcap is not None:
        gradients = gradients * (1.0 - jnp.square(logits / head.softcap))
    return jnp.where(live(columns, first, width), gradients, 0.0).astype(x.dtype)
