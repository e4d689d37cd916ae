"""The matmul in plain JAX: what the codes stand for, multiplied in bfloat16, which holds it exactly."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped


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
    right: Shaped[Array, "n k"],
    right_scales: Float[Array, "row_tiles tiles"],
    dtype: Any,
    *,
    interpret: bool = False,
) -> Float[Array, "m n"]:
    """Like `api.tiled_matmul`. `interpret` has no effect here."""
    del interpret
    dims = (((1,), (1,)), ((), ()))
    pair = numbers(left, left_scales), numbers(right, right_scales)
    return lax.dot_general(*pair, dims, lax.Precision.DEFAULT, preferred_element_type=dtype)
