"""Grouped products in float64 NumPy, group by group, and cases that are held to them."""

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


class Case(NamedTuple):
    """Rows, widths and sizes of groups."""

    m: int
    k: int
    n: int
    sizes: tuple[int, ...]
    dtype: str = "bfloat16"


def _shared_out(rows: int, groups: int, room_behind: bool = False) -> tuple[int, ...]:
    draw = np.random.default_rng(1234)
    if room_behind:
        return tuple(draw.integers(0, rows // groups, groups).tolist())
    return tuple(np.diff(np.sort(draw.integers(0, rows, groups - 1)), prepend=0, append=rows).tolist())


PUBLIC = {
    **{f"jax: {n} groups": Case(164, 64, 164, _shared_out(164, n), "float16") for n in (1, 3, 16)},
    "tokamax: even": Case(1024, 128, 256, (128,) * 8),
    "tokamax: padded": Case(1024, 128, 256, _shared_out(1024, 8, room_behind=True)),
    "tokamax: narrow": Case(128, 64, 128, (16,) * 8),
}
"""The kinds of cases that other tests of ragged products have: JAX's of `tests/pallas/mgpu_ragged_dot_test.py`, of a
hundredth of the rows; tokamax' of `tokamax/_src/ops/ragged_dot/test_base.py`, as large as there. Each is of all three
products, of which those tests have one or two. Left out is what `grouped_matmul` has no argument for: float32 operands,
a dtype of the result of its own, and quantized operands, which `tiled_matmul` has."""


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


compiled = jax.jit(by, static_argnums=(0,), static_argnames="interpret")


def errors(implementation: str, case: Case) -> tuple[float, float]:
    """Errors of kernels in their interpreter, and of plain JAX. What lies behind the groups is no number: nothing of it
    may reach a result."""
    rows, weights, d_out = arrays(case.m, len(case.sizes), case.k, case.n, case.dtype)
    rows, d_out = (x.at[sum(case.sizes) :].set(jnp.nan) for x in (rows, d_out))
    sizes = jnp.asarray(case.sizes, jnp.int32)
    wanted = expected(rows, weights, d_out, case.sizes)
    if implementation == "mosaic":  # the simulator runs outside of programs
        found = by(implementation, rows, weights, d_out, sizes, interpret=True)
    else:
        found, again = (compiled(implementation, rows, weights, d_out, sizes, interpret=True) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True)), "the same bits every time"
    assert {str(x.dtype) for x in found} == {case.dtype}
    return worst(found, wanted), worst(compiled("xla", rows, weights, d_out, sizes), wanted)
