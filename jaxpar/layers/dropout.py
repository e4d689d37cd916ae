"""Dropout as a function of the global token index: the same on every layout, and when a layer is recomputed."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt


def dropout(
    x: Float[Array, "batch seq embed"],
    rate: float,
    *,
    seed: UInt[Array, ""],
    site: int | Int[Array, ""],
    examples: Int[Array, " batch"],
    indices: Int[Array, "batch seq"],
) -> Float[Array, "batch seq embed"]:
    """Zero each element with probability `rate` and scale the rest by `1 / (1 - rate)`.

    The mask of a token is a function of (`seed`, `site`, its example, its index) only. `examples` are global indices
    that grow with the step; `site` numbers the places of the model that drop.
    """
    if rate == 0.0:
        return x
    keys = _keys(seed, site, examples, indices)
    keep = jax.vmap(jax.vmap(lambda k: jax.random.bernoulli(k, 1.0 - rate, x.shape[-1:])))(keys)
    return jnp.where(keep, x / (1.0 - rate), 0).astype(x.dtype)


def draws(
    draw: Callable[..., Array],
    width: int,
    seed: UInt[Array, ""],
    site: int | Int[Array, ""],
    examples: Int[Array, " batch"],
    indices: Int[Array, "batch seq"],
) -> Float[Array, "batch seq width"]:
    """Random numbers of `draw` (`jax.random.normal` and the like), a function of the same things as the mask of
    `dropout`."""
    keys = _keys(seed, site, examples, indices)
    return jax.vmap(jax.vmap(lambda k: draw(k, (width,), jnp.float32)))(keys)


def _keys(
    seed: UInt[Array, ""],
    site: int | Int[Array, ""],
    examples: Int[Array, " batch"],
    indices: Int[Array, "batch seq"],
) -> Array:
    """A key for each token."""
    key = jax.random.fold_in(jax.random.key(seed), site)
    rows = jax.vmap(jax.random.fold_in, (None, 0))(key, examples)
    return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(rows, indices)
