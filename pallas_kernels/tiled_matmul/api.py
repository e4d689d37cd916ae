"""`tiled_matmul`: the product of two matrices of codes that have a scale for each tile, on any platform."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from pallas_kernels.device import INTERPRETER, target
from pallas_kernels.tiled_matmul.registry import REGISTRY, Request
from pallas_kernels.varying import vary_alike

FORMS = ("float8_e4m3fn", "float8_e5m2")


def tiled_matmul(
    left: Shaped[Array, "m k"],
    left_scales: Float[Array, "m tiles"],
    right: Shaped[Array, "n k"],
    right_scales: Float[Array, "row_tiles tiles"],
    dtype: Any = jnp.bfloat16,
    *,
    implementation: str = "auto",
    interpret: bool = False,
) -> Float[Array, "m n"]:
    """`left @ right.T` of what the codes stand for, summed in float32; without gradients.

    Both are summed over their last side, as the FP8 units of a Hopper read them. Products of 128 numbers are scaled and
    added up in float32 outside those units, whose own sums keep 14 bits (DeepSeek-V3, arXiv:2412.19437, section 3.3.2).

    Args:
        left: Codes of 8 bits.
        left_scales: Powers of two, one for each k / tiles codes of a row.
        right: Codes of 8 bits, perhaps of the other format.
        right_scales: The same, for each row or for as many rows together as there are codes in a tile.
        dtype: Of the result.
        implementation: `auto`, or by name: see `registry.REGISTRY`.
        interpret: Run the kernel in Pallas' interpreter, for tests.

    Raises:
        ValueError: If shapes or formats do not fit together, or what is named does not support them.
    """
    check(left, left_scales, right, right_scales)
    device = INTERPRETER if interpret else target()
    request = Request(
        (str(left.dtype), str(right.dtype)), left.shape[0], right.shape[0], left.shape[1],
        left.shape[1] // left_scales.shape[1], dtype=str(jnp.dtype(dtype)), **device._asdict(),
    )  # fmt: skip
    function = REGISTRY[REGISTRY.chosen(implementation, request).name].tiled_matmul
    options = {"interpret": True} if interpret else {}
    return function(*vary_alike((left, left_scales, right, right_scales)), dtype, **options)


def check(left: Array, left_scales: Array, right: Array, right_scales: Array) -> None:
    """Refuse shapes and formats that do not fit together. Raises `ValueError`."""
    shapes = f"{left.shape} with scales {left_scales.shape} and {right.shape} with scales {right_scales.shape}"
    if any(x.ndim != 2 for x in (left, left_scales, right, right_scales)) or left.shape[1] != right.shape[1]:
        raise ValueError(f"a matmul of tiles is of [m, k] and [n, k] with scales of both, got {shapes}")
    tiles = left_scales.shape[1]
    rows = right_scales.shape[0]
    (n, k), squares = right.shape, right.shape[0] * tiles == rows * left.shape[1]
    fits = tiles and rows and k % tiles == 0 and (squares or rows == n)
    if not fits or left_scales.shape[0] != left.shape[0] or right_scales.shape[1] != tiles:
        raise ValueError(f"scales are [m, tiles] and [n or squares of it, tiles] with as many tiles of k, got {shapes}")
    if str(left.dtype) not in FORMS or str(right.dtype) not in FORMS:
        raise ValueError(f"codes are of {' or '.join(FORMS)}, got {left.dtype} and {right.dtype}")
