"""Grouped products in float64 NumPy, group by group."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.grouped_matmul import grouped_matmul


class Results(NamedTuple):
    """The product, and the gradients of rows and weights."""

    out: Any
    d_rows: Any
    d_weights: Any


def arrays(m: int, groups: int, k: int, n: int, dtype: str = "bfloat16") -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rows, weights and the gradient of the product."""
    draw = np.random.default_rng(0)
    return tuple(jnp.asarray(draw.normal(size=size), dtype) for size in ((m, k), (groups, k, n), (m, n)))  # type: ignore[return-value]


def expected(rows: Any, weights: Any, d_out: Any, sizes: Sequence[int]) -> Results:
    """In float64; rows behind the last group count for nothing, whatever they are."""
    x, w, d = (np.asarray(each, np.float64) for each in (rows, weights, d_out))
    found = Results(np.zeros_like(d), np.zeros_like(x), np.zeros_like(w))
    first = 0
    for group, size in enumerate(sizes):
        own = slice(first, min(first + size, len(x)))
        found.out[own], found.d_rows[own] = x[own] @ w[group], d[own] @ w[group].T
        found.d_weights[group] = x[own].T @ d[own]
        first = own.stop
    return found


def by(implementation: str, rows: Any, weights: Any, d_out: Any, sizes: Any, interpret: bool = False) -> Results:
    """By an implementation of `pallas_kernels`."""
    sizes = jnp.asarray(sizes, jnp.int32)
    product = lambda rows, weights: grouped_matmul(
        rows, weights, sizes, implementation=implementation, interpret=interpret
    )
    out, pull = jax.vjp(product, rows, weights)
    return Results(out, *pull(d_out))


def worst(have: Results, wanted: Results) -> float:
    """The largest error of a result, relative to its largest number; infinite where something is not finite."""
    found = 0.0
    for a, b in zip(have, wanted, strict=True):
        difference = np.abs(np.asarray(a, np.float64) - b)
        found = max(found, difference.max() / max(np.abs(b).max(), 1e-30) if np.isfinite(difference).all() else np.inf)
    return found
