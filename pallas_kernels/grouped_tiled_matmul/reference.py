"""The products in plain JAX: what the codes stand for, multiplied by `pallas_kernels.grouped_matmul`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.device import target
from pallas_kernels.grouped_matmul.api import request_of
from pallas_kernels.grouped_matmul.registry import REGISTRY
from pallas_kernels.tiled_matmul.reference import numbers


def grouped_tiled_matmul(
    rows: Shaped[Array, "m k"],
    row_scales: Float[Array, "m tiles"],
    weights: Shaped[Array, "groups n k"],
    weight_scales: Float[Array, "groups row_tiles tiles"],
    sizes: Int[Array, " groups"],
    dtype: Any,
    numbers_by: str,
) -> Float[Array, "m n"]:
    """Like `api.grouped_tiled_matmul`."""
    left = numbers(rows, row_scales).astype(dtype)
    right = numbers(weights, weight_scales).astype(dtype)
    name = REGISTRY.chosen(numbers_by, request_of(left, jnp.swapaxes(right, 1, 2), target())).name
    return REGISTRY[name].times_weights(left, right, sizes, transposed=True)


def of_weights(
    rows: Shaped[Array, "m k"],
    row_scales: Float[Array, "tiles k"],
    d_out: Shaped[Array, "m n"],
    d_out_scales: Float[Array, "tiles n"],
    sizes: Int[Array, " groups"],
    dtype: Any,
    numbers_by: str,
) -> Float[Array, "groups k n"]:
    """Like `api.grouped_tiled_weight_gradients`."""
    left = numbers(rows, row_scales).astype(dtype)
    right = numbers(d_out, d_out_scales).astype(dtype)
    matrices = jax.ShapeDtypeStruct((sizes.shape[0], left.shape[1], right.shape[1]), dtype)
    name = REGISTRY.chosen(numbers_by, request_of(left, matrices, target())).name
    return REGISTRY[name].of_weights(left, right, sizes)
