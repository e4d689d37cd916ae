"""Logits that the forward may save, so that the backward does not recompute them.

They are saved as exponentials of the logit less a base per token and group of columns: the rounding error is relative
to a probability, like that of its gradient. Rounded logits would have an error relative to the logit: for a logit of 20
in bfloat16, the probability would be off by 4% instead of 0.2%.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.linear_cross_entropy.head import Head


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SavedLogits:
    """Logits after the cap, of a shard of the vocabulary, as exponentials."""

    values: Float[Array, "tokens columns"]
    """exp(logit - base of its token and group), in x's dtype; 0 in columns that only pad the table."""
    bases: Float[Array, "groups tokens"]
    """Greatest logit of the token up to the group's end, less `log(scale)`; float32."""
    width: int = field(metadata={"static": True})
    """Columns of a group; the last group may have fewer."""


class Token(NamedTuple):
    """Values of each token, float32 [tokens], in a kernel [tokens, 1]."""

    lse: jax.Array
    """Log-sum-exp of the token's logits."""
    of_lse: jax.Array
    """Factor of the probabilities in their gradients."""
    of_label: jax.Array
    """Factor of the label in its gradient."""
    label: jax.Array
    """Logit of the label."""


def scale(dtype: Any) -> float:
    """Factor of exponentials saved in `dtype`: float16 has few bits for small numbers, and its maximum is 65504."""
    return 2.0**15 if dtype == jnp.float16 else 1.0


def saved_bytes(tokens: int, columns: int) -> int:
    """Bytes that the kernel saves for a device's tokens and columns, in groups of 128 columns."""
    return 2 * tokens * columns + 4 * tokens * -(-columns // 128)


def rounded(values: jax.Array, base: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """The saved form of exp(logit - base): the exponentials in `dtype`, and their bases."""
    factor = scale(dtype)
    return (values * factor).astype(dtype), base - log(factor)


def gradients(head: Head, values: jax.Array, bases: jax.Array, hit: Bool[Array, "..."], token: Token) -> jax.Array:
    """Gradients of logits before the cap, float32, from saved `values` (arrays that broadcast against each other).

    The gradient of a label, `hit`, is a small difference of numbers near 1 if the label is likely: it is computed from
    the label's logit, which is not rounded.
    """
    values = values.astype(jnp.float32)
    # A base is above the log-sum-exp only if no column of the group is valid: its values are 0 and stay 0.
    probability = values * jnp.exp(jnp.minimum(bases - token.lse, 0.0))
    probability = jnp.where(hit, jnp.exp(token.label - token.lse), probability)
    gradient = token.of_lse * probability - jnp.where(hit, token.of_label, 0.0)
    if head.softcap is not None:
        logits = jnp.log(jnp.maximum(values, jnp.finfo(jnp.float32).tiny)) + bases
        gradient = gradient * (1.0 - jnp.square(jnp.where(hit, token.label, logits) / head.softcap))
    return gradient


def gradients_from_saved(
    head: Head, saved: SavedLogits, labels: Int[Array, " tokens"], token: Token
) -> Float[Array, "tokens columns"]:
    """Gradients of all logits before the cap, in x's dtype, in plain JAX."""
    (groups, tokens), columns = saved.bases.shape, saved.values.shape[1]
    bases = jnp.broadcast_to(saved.bases.T[:, :, None], (tokens, groups, saved.width))
    bases = bases.reshape(tokens, groups * saved.width)[:, :columns]
    hit = labels[:, None] == jnp.arange(columns)
    of_tokens = Token(*(numbers[:, None] for numbers in token))
    return gradients(head, saved.values, bases, hit, of_tokens).astype(saved.values.dtype)
