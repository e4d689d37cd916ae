"""The products in plain JAX: what the codes stand for, multiplied in bfloat16, which holds it exactly; of groups by
`pallas_kernels.grouped_matmul`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from pallas_kernels.device import target
from pallas_kernels.grouped_matmul import registry as grouped
from pallas_kernels.grouped_matmul.api import request_of


def numbers(
    quantized: Shaped[Array, "... rows columns"], scales: Float[Array, "... row_tiles column_tiles"]
) -> Float[Array, "... rows columns"]:
    """Dequantize. The result is exact in bfloat16: scales are powers of two, and mantissas have at most 4 bits."""
    tile = quantized.shape[-2] // scales.shape[-2], quantized.shape[-1] // scales.shape[-1]
    cut = quantized.astype(jnp.bfloat16).reshape(
        *quantized.shape[:-2], scales.shape[-2], tile[0], scales.shape[-1], tile[1]
    )
    return (cut * scales.astype(jnp.bfloat16)[..., :, None, :, None]).reshape(quantized.shape)


def tiled_matmul(
    left: jax.Array, left_scales: jax.Array, right: jax.Array, right_scales: jax.Array, sizes: jax.Array | None,
    dtype: Any, numbers_by: str,
) -> jax.Array:  # fmt: skip
    """Like `api.tiled_matmul`."""
    rows, matrices = numbers(left, left_scales), numbers(right, right_scales)
    if sizes is None:
        dims = (((1,), (1,)), ((), ()))
        return lax.dot_general(rows, matrices, dims, lax.Precision.DEFAULT, preferred_element_type=dtype)
    rows, matrices = rows.astype(dtype), matrices.astype(dtype)
    multiply = _grouped(numbers_by, rows, jax.ShapeDtypeStruct(jnp.swapaxes(matrices, 1, 2).shape, dtype))
    return multiply.times_weights(rows, matrices, sizes, transposed=True)


def of_weights(
    rows: jax.Array, row_scales: jax.Array, d_out: jax.Array, d_out_scales: jax.Array, sizes: jax.Array,
    dtype: Any, numbers_by: str,
) -> jax.Array:  # fmt: skip
    """Like `api.tiled_weight_gradients`."""
    left, right = numbers(rows, row_scales).astype(dtype), numbers(d_out, d_out_scales).astype(dtype)
    matrices = jax.ShapeDtypeStruct((sizes.shape[0], left.shape[1], right.shape[1]), dtype)
    return _grouped(numbers_by, left, matrices).of_weights(left, right, sizes)


def _grouped(name: str, rows: jax.Array, matrices: jax.ShapeDtypeStruct) -> grouped.Implementation:
    return grouped.REGISTRY[grouped.REGISTRY.chosen(name, request_of(rows, matrices, target())).name]
