"""The products in plain JAX: what the codes stand for, multiplied in bfloat16, which holds it exactly; of groups by
`pallas_kernels.grouped_matmul`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

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
    left: Shaped[Array, "m k"],
    left_scales: Float[Array, "m tiles"],
    right: Shaped[Array, "*groups n k"],
    right_scales: Float[Array, "*groups row_tiles tiles"],
    sizes: Int[Array, " groups"] | None,
    dtype: Any,
    numbers_by: str,
) -> Float[Array, "m n"]:
    """Like `api.tiled_matmul`."""
    rows, matrices = numbers(left, left_scales), numbers(right, right_scales)
    if sizes is None:
        dims = (((1,), (1,)), ((), ()))
        return lax.dot_general(rows, matrices, dims, lax.Precision.DEFAULT, preferred_element_type=dtype)
    rows, matrices = rows.astype(dtype), matrices.astype(dtype)
    multiply = _grouped(numbers_by, rows, jax.ShapeDtypeStruct(jnp.swapaxes(matrices, 1, 2).shape, dtype))
    return multiply.times_weights(rows, matrices, sizes, transposed=True)


def of_weights(
    rows: Shaped[Array, "m k"],
    row_scales: Float[Array, "tiles k"],
    d_out: Shaped[Array, "m n"],
    d_out_scales: Float[Array, "tiles n"],
    sizes: Int[Array, " groups"],
    dtype: Any,
    numbers_by: str,
) -> Float[Array, "groups k n"]:
    """Like `api.tiled_weight_gradients`."""
    left, right = numbers(rows, row_scales).astype(dtype), numbers(d_out, d_out_scales).astype(dtype)
    matrices = jax.ShapeDtypeStruct((sizes.shape[0], left.shape[1], right.shape[1]), dtype)
    return _grouped(numbers_by, left, matrices).of_weights(left, right, sizes)


def _grouped(name: str, rows: jax.Array, matrices: jax.ShapeDtypeStruct) -> grouped.Implementation:
    return grouped.REGISTRY[grouped.REGISTRY.chosen(name, request_of(rows, matrices, target())).name]
