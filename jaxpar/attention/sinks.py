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
    """The output of attention that has `exp(sink)` in its denominator besides the keys' terms; without sinks, `out`.

    With l the log-sum-exp of the scores that is `out * exp(l) / (exp(l) + exp(sink)) = out * sigmoid(l - sink)`: any
    kernel will do whose log-sum-exp has a derivative.
    """
    if sinks is None:
        return out
    share = jax.nn.sigmoid(lse - sinks.astype(jnp.float32))
    return (out.astype(jnp.float32) * share[..., None]).astype(out.dtype)
