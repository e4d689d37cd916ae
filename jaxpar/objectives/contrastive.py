"""A contrastive term over relations between spans (CKBERT, arXiv:2210.05287; InfoNCE, arXiv:1807.03748).

A span is the sum of its tokens' last hidden states, at length 1. For a triple of head h and tail t, with the scores
s = cosine / temperature and the tails n of the row's other triples that are no tail of h, nor h itself, each once:

    -log(exp s(h, t) / (exp s(h, t) + sum of exp s(h, n)))

A row's term is the sum over its triples, each times its weight of relation and hop, divided by the number of them whose
weight is not 0. It is weighted by the number of tokens that the row has drawn.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

SMALLEST = 1e-12
"""Added to the square of a span's length."""


def row_terms(
    spans: Float[Array, "row span embed"],
    triples: Int[Array, "row triple four"],
    weights: Float[Array, "row triple"],
    temperature: float,
) -> Float[Array, " row"]:
    """The term of each row, 0 without a triple.

    Args:
        spans: sums of the tokens of the heads, and then of the tails.
        triples: head and stop, tail and stop.
        weights: of the triples; 0 where there is none.
        temperature: divides cosines.
    """
    vectors = spans * jax.lax.rsqrt(jnp.square(spans).sum(-1, keepdims=True) + SMALLEST)
    heads, tails = jnp.split(vectors, 2, axis=1)
    scores = jnp.einsum("rte,rne->rtn", heads, tails) / temperature
    positive = jnp.diagonal(scores, axis1=1, axis2=2)
    candidates = jnp.where(negatives(triples, weights > 0), scores, -jnp.inf)
    total = jax.nn.logsumexp(jnp.concatenate([positive[..., None], candidates], axis=-1), axis=-1)
    losses = jnp.where(weights > 0, total - positive, 0.0)
    return (weights * losses).sum(1) / jnp.maximum((weights > 0).sum(1), 1)


def negatives(
    triples: Int[Array, "row triple four"], valid: Bool[Array, "row triple"]
) -> Bool[Array, "row triple triple"]:
    """Whether the tail of the second triple is a negative of the head of the first."""
    head, tail = triples[..., :2], triples[..., 2:]
    same = lambda a, b: (a[:, :, None] == b[:, None]).all(-1)
    of_head = same(head, head) & valid[:, None]
    linked = jnp.einsum("rtu,run->rtn", of_head.astype(jnp.int32), same(tail, tail).astype(jnp.int32)) > 0
    before = jnp.tril(jnp.ones((triples.shape[1],) * 2, bool), -1)
    repeated = (same(tail, tail) & before & valid[:, None]).any(-1)
    return valid[:, None] & ~repeated[:, None] & ~linked & ~same(head, tail)
