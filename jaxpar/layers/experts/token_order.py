"""The tokens of a microbatch on all ranks in one order, for decisions that look at all of them."""

from __future__ import annotations

from typing import NamedTuple, Self

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Shaped

from jaxpar.layers.context import TokenContext, sequence_part
from jaxpar.mesh.collectives import join_ranks

TOKEN_AXES = ("replica", "fsdp", "expert", "context", "tensor")
"""Axes whose ranks have different tokens of a microbatch."""


class TokenOrder(NamedTuple):
    """The order by example, and by index in it: the same on every rank, and on every layout."""

    order: Int[Array, " all_tokens"]
    """Of the tokens of all ranks, one rank's after another, the one at each place."""
    places: Int[Array, " tokens"]
    """The place of each token of this rank."""

    @classmethod
    def of(cls, tokens: TokenContext) -> Self:
        """The order of the tokens of a microbatch."""
        indices = sequence_part(tokens.indices)
        examples = jnp.broadcast_to(tokens.examples[:, None], indices.shape)
        keys = join_ranks(jnp.stack([examples.ravel(), indices.ravel()], axis=1), TOKEN_AXES)
        order = jnp.lexsort((keys[:, 1], keys[:, 0]))
        first = lax.axis_index(TOKEN_AXES) * indices.size
        return cls(order, lax.dynamic_slice_in_dim(jnp.argsort(order), first, indices.size))

    def whole(self, x: Shaped[Array, "tokens *rest"]) -> Shaped[Array, "all_tokens *rest"]:
        """`x` of the tokens of all ranks, in order, without a derivative."""
        return join_ranks(lax.stop_gradient(x), TOKEN_AXES)[self.order]

    def own(self, x: Shaped[Array, "all_tokens *rest"]) -> Shaped[Array, "tokens *rest"]:
        """This rank's part of `x`, which is in order."""
        return x[self.places]
