"""Zeros whose cotangents are magnitudes: what a backward has seen, where it uses them several times."""

from __future__ import annotations

from functools import partial, reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def for_each_use(observed: Float[Array, "tensors"], uses: int) -> tuple[Float[Array, "tensors"], ...]:
    """`observed` once for each use, where its cotangent is the largest of theirs and not their sum."""
    return _copies(uses, observed)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _copies(uses: int, observed: jax.Array) -> tuple[jax.Array, ...]:
    return (observed,) * uses


def _forward(uses: int, observed: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
    return _copies(uses, observed), None


def _backward(uses: int, kept: None, seen: tuple[jax.Array, ...]) -> tuple[jax.Array]:
    del uses, kept
    return (reduce(jnp.maximum, seen),)


_copies.defvjp(_forward, _backward)
