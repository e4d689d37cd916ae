"""Attention sinks: a learned logit of each head in the denominator of its softmax (arXiv:2309.17453, gpt-oss)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def with_sinks(
    out: Float[Array, "batch queries heads width"],
    lse: Float[Array, "batch queries heads"],
    sinks: Float[Array, " heads"] | None,
) -> Float[Array, "batch queries heads width"]:
    """The output of attention whose softmax has `exp(sink)` as a further term of its denominator; without sinks, `out`.

    With l the log-sum-exp of the scores, it is `out * exp(l) / (exp(l) + exp(sink)) = out * sigmoid(l - sink)`. This
    works for every kernel that gives a derivative for its log-sum-exp.
    """
    if sinks is None:
        return out
    share = jax.nn.sigmoid(lse - sinks.astype(jnp.float32))
    return (out.astype(jnp.float32) * share[..., None]).astype(out.dtype)
