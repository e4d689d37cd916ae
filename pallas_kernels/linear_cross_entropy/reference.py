"""Cross-entropy of a linear head in plain JAX, a chunk of the vocabulary at a time: what kernels are held to.

Matmuls are in the input dtype and accumulate in float32; logits, their statistics and loss are float32. Holds the
float32 logits of one chunk.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.linear_cross_entropy.head import Head, Statistics, live, merge


def statistics(
    head: Head,
    x: Float[Array, "tokens embed"],
    table: Float[Array, "..."],
    labels: Int[Array, " tokens"],
    columns: Int[Array, " one"],
) -> Statistics:
    """Of every token over the columns of this shard; `labels` are its columns (`Head.local_labels`)."""
    chunks = head.chunks(table, x.shape[0], 4)

    def of_chunk(first: jax.Array | int, width: int) -> Statistics:
        logits = head.cap(head.product(x, head.part(table, columns, first, width)))
        hit = labels[:, None] == first + jnp.arange(width)
        logits = jnp.where(live(columns, first, width), logits, -jnp.inf)
        peak = logits.max(-1)
        base = jnp.where(peak == -jnp.inf, 0.0, peak)
        label = jnp.where(hit, logits, 0.0).sum(-1)
        return Statistics(peak, jnp.exp(logits - base[:, None]).sum(-1), label)

    step = lambda _, index: (None, of_chunk(index * chunks.width, chunks.width))
    parts = lax.scan(step, None, jnp.arange(chunks.full))[1]
    if chunks.rest:
        last = of_chunk(chunks.full * chunks.width, chunks.rest)
        parts = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), parts, last)
    return merge(parts)


def logit_gradients(
    head: Head,
    x: Float[Array, "tokens embed"],
    table: Float[Array, "..."],
    labels: Int[Array, " tokens"],
    columns: Int[Array, " one"],
    token: Any,
    chunk: jax.Array | int,
    stride: int,
    width: int,
) -> Float[Array, "tokens width"]:
    """Gradients of the logits before the cap of the `width` columns from `chunk * stride` on, in x's dtype.

    `token` is (lse, of_lse, of_label), float32 [tokens] each: the log-sum-exp, and the factors of the probabilities and
    of the label.
    """
    (lse, of_lse, of_label), first = token, chunk * stride
    logits = head.cap(head.product(x, head.part(table, columns, first, width)))
    hit = labels[:, None] == first + jnp.arange(width)
    gradients = of_lse[:, None] * jnp.exp(logits - lse[:, None]) - jnp.where(hit, of_label[:, None], 0.0)
    if head.softcap is not None:
        gradients = gradients * (1.0 - jnp.square(logits / head.softcap))
    return jnp.where(live(columns, first, width), gradients, 0.0).astype(x.dtype)
