"""What the forward may keep of the logits, so that the backward does not compute them again.

Kept are exponentials, each of a logit less a number of its token and group of columns: rounding them errs by a share of
a probability, as rounding its gradient does. Rounding logits would err by a share of the logit, and a probability by as
much as that is in nats: at 20, by 4% in bfloat16 instead of 0.2%.
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
class Kept:
    """Logits after the cap, of a shard of the vocabulary, as exponentials."""

    values: Float[Array, "tokens columns"]
    """exp(logit - base of its token and group), in x's dtype; 0 in columns that only pad the table."""
    bases: Float[Array, "groups tokens"]
    """Greatest logit of the token up to the group's end, less `log(scale)`; float32."""
    width: int = field(metadata={"static": True})
    """Columns of a group; the last group may have fewer."""


class Token(NamedTuple):
    """Of each token, float32 [tokens], in a kernel [tokens, 1]."""

    lse: jax.Array
    """Log-sum-exp of its logits."""
    of_lse: jax.Array
    """The factor of its probabilities in their gradients."""
    of_label: jax.Array
    """That of its label."""
    label: jax.Array
    """Its label's logit."""


def scale(dtype: Any) -> float:
    """Factor of exponentials that are kept in `dtype`: float16 has few bits for small numbers, and goes to 65504."""
    return 2.0**15 if dtype == jnp.float16 else 1.0


def kept_bytes(tokens: int, columns: int) -> int:
    """Bytes that the kernel keeps of so many tokens and columns of a device, in groups of 128 columns."""
    return 2 * tokens * columns + 4 * tokens * -(-columns // 128)


def rounded(values: jax.Array, base: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """What is kept of exp(logit - base): the exponentials in `dtype`, and their bases."""
    factor = scale(dtype)
    return (values * factor).astype(dtype), base - log(factor)


def gradients(head: Head, values: jax.Array, bases: jax.Array, hit: Bool[Array, "..."], token: Token) -> jax.Array:
    """Gradients of logits before the cap, float32, of kept `values` (arrays that broadcast against each other).

    That of a label, `hit`, is a small difference of numbers near 1 if the label is likely: it is made of the label's
    logit, without what was rounded.
    """
    values = values.astype(jnp.float32)
    # A base is above the log-sum-exp only where no column of the group counts: there values are 0, and stay it.
    probability = values * jnp.exp(jnp.minimum(bases - token.lse, 0.0))
    probability = jnp.where(hit, jnp.exp(token.label - token.lse), probability)
    found = token.of_lse * probability - jnp.where(hit, token.of_label, 0.0)
    if head.softcap is not None:
        logits = jnp.log(jnp.maximum(values, jnp.finfo(jnp.float32).tiny)) + bases
        found = found * (1.0 - jnp.square(jnp.where(hit, token.label, logits) / head.softcap))
    return found


def kept_gradients(
    head: Head, kept: Kept, labels: Int[Array, " tokens"], token: Token
) -> Float[Array, "tokens columns"]:
    """Gradients of all logits before the cap, in x's dtype, in plain JAX."""
    (groups, tokens), columns = kept.bases.shape, kept.values.shape[1]
    bases = jnp.broadcast_to(kept.bases.T[:, :, None], (tokens, groups, kept.width))
    bases = bases.reshape(tokens, groups * kept.width)[:, :columns]
    hit = labels[:, None] == jnp.arange(columns)
    of_tokens = Token(*(numbers[:, None] for numbers in token))
    return gradients(head, kept.values, bases, hit, of_tokens).astype(kept.values.dtype)
