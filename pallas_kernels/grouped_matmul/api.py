"""`grouped_matmul`: rows of each group times the matrix of the group, with gradients, on any platform."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.device import INTERPRETER, Target, target
from pallas_kernels.grouped_matmul.registry import REGISTRY, Request
from pallas_kernels.grouped_matmul.work import expecting
from pallas_kernels.varying import vary_alike

_DTYPES = ("bfloat16", "float16", "float32")


def grouped_matmul(
    rows: Float[Array, "m k"],
    weights: Float[Array, "groups k n"],
    group_sizes: Int[Array, " groups"],
    *,
    implementation: str = "auto",
    expected: int | None = None,
    interpret: bool = False,
) -> Float[Array, "m n"]:
    """Multiply each row by the matrix of its group, with gradients for rows and weights.

    The first `group_sizes[0]` rows are of group 0, the next of group 1, and so on. The work is that of the groups,
    however uneven they are; a group may be empty. Rows behind the last group give 0, and their gradient is 0: an array
    may have room for more rows than there are. Sums are float32, results have the dtype of the inputs.

    Args:
        rows: In bfloat16, float16 or float32, sorted by group.
        weights: A matrix for each group, in rows' dtype.
        group_sizes: Rows of each group, integers from 0; where they add up to more than there are rows, the last
            groups are cut off.
        implementation: `auto`, or by name: see `registry.REGISTRY`.
        expected: Rows of all groups together, as far as is known when compiling, for those who count the work of a
            program (`work.expected_rows`); None means all of `rows`.
        interpret: Run the kernels in Pallas' interpreter, for tests.

    Raises:
        ValueError: If shapes or dtypes do not fit together, or what is named does not support them.
    """
    check(rows, weights, group_sizes)
    request = request_of(rows, weights, INTERPRETER if interpret else None)
    static = Static(
        REGISTRY.chosen(implementation, request).name, rows.shape[0] if expected is None else expected, interpret
    )
    return _product(static, *vary_alike((rows, weights, group_sizes)))


class Static(NamedTuple):
    """Static arguments under jit."""

    name: str
    expected: int
    interpret: bool

    def times_weights(self, *arrays: jax.Array, transposed: bool) -> jax.Array:
        options = {"interpret": True} if self.interpret else {}
        with expecting(self.expected):
            return REGISTRY[self.name].times_weights(*arrays, transposed=transposed, **options)

    def of_weights(self, *arrays: jax.Array) -> jax.Array:
        options = {"interpret": True} if self.interpret else {}
        with expecting(self.expected):
            return REGISTRY[self.name].of_weights(*arrays, **options)


def _forward(static: Static, rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> tuple[jax.Array, tuple]:
    return static.times_weights(rows, weights, sizes, transposed=False), (rows, weights, sizes)


def _backward(static: Static, residuals: tuple[jax.Array, ...], d_out: jax.Array) -> tuple:
    rows, weights, sizes = residuals
    d_rows = static.times_weights(d_out, weights, sizes, transposed=True)
    return d_rows, static.of_weights(rows, d_out, sizes), None


def _multiplied(static: Static, rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
    return _forward(static, rows, weights, sizes)[0]


_product = jax.custom_vjp(_multiplied, nondiff_argnums=(0,))
_product.defvjp(_forward, _backward)


def request_of(rows: jax.Array, weights: jax.Array | jax.ShapeDtypeStruct, device: Target | None) -> Request:
    """The request for a device, by default the target of the current trace."""
    device = device or target()
    groups, k, n = weights.shape
    return Request(rows.shape[0], groups, k, n, dtype=str(rows.dtype), **device._asdict())


def check(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> None:
    """Refuse shapes and dtypes that do not fit together. Raises `ValueError`."""
    shapes = f"rows {rows.shape}, weights {weights.shape} and group sizes {sizes.shape}"
    if (rows.ndim, weights.ndim, sizes.ndim) != (2, 3, 1):
        raise ValueError(f"a grouped matmul is of rows [m, k], weights [groups, k, n] and sizes [groups], got {shapes}")
    if rows.shape[1] != weights.shape[1] or sizes.shape[0] != weights.shape[0]:
        raise ValueError(f"the width of rows, or the number of groups, differs: {shapes}")
    if 0 in (*rows.shape, *weights.shape):
        raise ValueError(f"a grouped matmul of nothing: {shapes}")
    if rows.dtype != weights.dtype or str(rows.dtype) not in _DTYPES:
        raise ValueError(f"rows and weights are alike in {', '.join(_DTYPES)}, got {rows.dtype} and {weights.dtype}")
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise ValueError(f"group sizes are integers, got {sizes.dtype}")
