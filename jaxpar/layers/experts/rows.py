"""Rows to other places and back, by gathers in both directions: the derivative of each function is the other one.

`take` has the source of each row of the destination, and `back` the destinations of each source; -1 is none. Both come
from one sort, so that no direction needs a scatter.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

type Take = Int[Array, " places"]
type Back = Int[Array, "sources copies"]


@jax.custom_vjp
def spread(x: Float[Array, "sources width"], take: Take, back: Back) -> Float[Array, "places width"]:
    """`x[take]`, and 0 where `take` is -1."""
    del back
    return _rows(x, take)


@jax.custom_vjp
def collect(y: Float[Array, "places width"], take: Take, back: Back) -> Float[Array, "sources width"]:
    """The sum of `y[back]` over the copies of each source, in float32 and in their order."""
    del take
    return _sums(y, back)


spread.defvjp(
    lambda x, take, back: (_rows(x, take), (back,)),
    lambda kept, dy: (_sums(dy, *kept), None, None),
)
collect.defvjp(
    lambda y, take, back: (_sums(y, back), (take,)),
    lambda kept, dx: (_rows(dx, *kept), None, None),
)


def _rows(x: jax.Array, take: Take) -> jax.Array:
    there = (take >= 0).reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(there, x.at[jnp.maximum(take, 0)].get(mode="promise_in_bounds"), 0)


def _sums(y: jax.Array, back: Back) -> jax.Array:
    total = jnp.zeros((), jnp.float32)
    for copy in range(back.shape[1]):
        total = total + _rows(y, back[:, copy]).astype(jnp.float32)
    return total.astype(y.dtype)
