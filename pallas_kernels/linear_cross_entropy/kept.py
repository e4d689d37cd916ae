"""What the forward may keep of the logits, so that the backward does not compute them again.

Kept are exponentials, of which each is a logit's less a number of its token and group of columns: rounding them errs by
a share of a probability, as rounding the gradient does, where rounding logits errs by a share of the logit, which is
many times as much in a probability.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.linear_cross_entropy.head import Head


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Kept:
    """Logits after the cap, of a shard of the vocabulary, as exponentials."""

    values: Float[Array, "tokens columns"]
    """exp(logit - base of its token and group), in `kept_dtype`; 0 in columns that only pad the table."""
    bases: Float[Array, "groups tokens"]
    """At least the greatest logit of the token's group, float32."""
    width: int = field(metadata={"static": True})
    """Columns of a group; the last group may have fewer."""

    def wide(self, of_groups: Float[Array, "groups tokens"]) -> Float[Array, "tokens columns"]:
        """A number for each token and group, as one for each token and column."""
        groups, tokens = of_groups.shape
        repeated = jnp.broadcast_to(of_groups.T[:, :, None], (tokens, groups, self.width))
        return repeated.reshape(tokens, groups * self.width)[:, : self.values.shape[1]]


def kept_dtype(dtype: Any) -> Any:
    """That of kept exponentials for inputs in `dtype`: bfloat16 for float16 too, which has no small ones."""
    return jnp.bfloat16 if jnp.dtype(dtype).itemsize == 2 else dtype


def kept_bytes(tokens: int, columns: int) -> int:
    """Bytes that the kernel keeps of so many tokens and columns of a device, with groups of 128 columns."""
    return 2 * tokens * columns + 4 * tokens * -(-columns // 128)


def logit_gradients(
    head: Head, kept: Kept, labels: Int[Array, " tokens"], token: Any, label: Float[Array, " tokens"], dtype: Any
) -> Float[Array, "tokens columns"]:
    """Gradients of all logits before the cap, as `reference.logit_gradients` has those of a chunk, from what was kept.

    `token` is as there. `label` is the label's logit: its column, whose gradient is a small difference of numbers near
    1 for a likely label, is computed without what was rounded. XLA writes the result over `kept.values`.
    """
    lse, of_lse, of_label = token
    values = kept.values.astype(jnp.float32)
    # A base is above its log-sum-exp only where it is of columns without probability, which are 0 and stay it.
    share = jnp.exp(jnp.minimum(kept.bases - lse, 0.0))
    hit = labels[:, None] == jnp.arange(values.shape[1])
    probability = jnp.where(hit, jnp.exp(label - lse)[:, None], values * kept.wide(share))
    gradients = of_lse[:, None] * probability - jnp.where(hit, of_label[:, None], 0.0)
    if head.softcap is not None:
        logits = jnp.log(jnp.maximum(values, jnp.finfo(jnp.float32).tiny)) + kept.wide(kept.bases)
        logits = jnp.where(hit, label[:, None], logits)
        gradients = gradients * (1.0 - jnp.square(logits / head.softcap))
    return gradients.astype(dtype)
