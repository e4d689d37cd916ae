"""The matmul in plain JAX: what the codes stand for, multiplied in bfloat16, which holds it exactly."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped


def numbers(
    codes: Shaped[Array, "... rows columns"], scales: Float[Array, "... row_tiles column_tiles"]
) -> Float[Array, "... rows columns"]:
    """What the codes stand for. bfloat16 has it exactly: scales are powers of two, and codes have at most 4 bits."""
    tile = codes.shape[-2] // scales.shape[-2], codes.shape[-1] // scales.shape[-1]
    cut = codes.astype(jnp.bfloat16).reshape(*codes.shape[:-2], scales.shape[-2], tile[0], scales.shape[-1], tile[1])
    return (cut * scales.astype(jnp.bfloat16)[..., :, None, :, None]).reshape(codes.shape)


def tiled_matmul(
    left: Shaped[Array, "m k"],
    left_scales: Float[Array, "m tiles"],
    right: Shaped[Array, "n k"],
    right_scales: Float[Array, "row_tiles tiles"],
    dtype: Any,
    *,
    interpret: bool = False,
) -> Float[Array, "m n"]:
    """Like `api.tiled_matmul`. The interpreter makes no difference here."""
    del interpret
    dims = (((1,), (1,)), ((), ()))
    pair = numbers(left, left_scales), numbers(right, right_scales)
    return lax.dot_general(*pair, dims, lax.Precision.DEFAULT, preferred_element_type=dtype)
