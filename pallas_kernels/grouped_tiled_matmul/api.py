"""Products of codes with scales of tiles, group by group, on any platform: `grouped_tiled_matmul` of rows and the
matrix of their group, `grouped_tiled_weight_gradients` of the rows of a group and the gradients of its outputs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.device import INTERPRETER, target
from pallas_kernels.grouped_matmul.work import expecting
from pallas_kernels.grouped_tiled_matmul.registry import REGISTRY, Request
from pallas_kernels.tiled_matmul.api import FORMS
from pallas_kernels.varying import vary_alike


def grouped_tiled_matmul(
    rows: Shaped[Array, "m k"],
    row_scales: Float[Array, "m tiles"],
    weights: Shaped[Array, "groups n k"],
    weight_scales: Float[Array, "groups row_tiles tiles"],
    group_sizes: Int[Array, " groups"],
    dtype: Any = jnp.bfloat16,
    *,
    implementation: str = "auto",
    numbers_by: str = "auto",
    expected: int | None = None,
    interpret: bool = False,
) -> Float[Array, "m n"]:
    """Multiply each dequantized row by the transposed matrix of its group; without gradients.

    The first `group_sizes[0]` rows are of group 0, the next of group 1, and so on; rows behind the last group give 0.
    Both sides are summed over their last dim, as the FP8 units of a Hopper read them, in float32: see
    `pallas_kernels.tiled_matmul`.

    Args:
        rows: Codes of 8 bits, sorted by group.
        row_scales: Powers of two, one for each k / tiles codes of a row.
        weights: Codes of 8 bits, perhaps of the other format: a matrix for each group.
        weight_scales: The same, for each row of a matrix or for as many rows together as there are codes in a tile.
        group_sizes: Rows of each group, integers from 0.
        dtype: Of the result.
        implementation: `auto`, or by name: see `registry.REGISTRY`.
        numbers_by: The implementation of `pallas_kernels.grouped_matmul` that multiplies what the codes stand for,
            where codes are not multiplied.
        expected: As in `pallas_kernels.grouped_matmul.grouped_matmul`.
        interpret: Run the kernel in Pallas' interpreter, for tests.

    Raises:
        ValueError: If shapes or formats do not fit together, or what is named does not support them.
    """
    check(rows, row_scales, weights, weight_scales, group_sizes)
    device = INTERPRETER if interpret else target()
    (m, k), (groups, n, _) = rows.shape, weights.shape
    request = Request(
        (str(rows.dtype), str(weights.dtype)), m, n, k, k // row_scales.shape[1], dtype=str(jnp.dtype(dtype)),
        groups=groups, squares=weight_scales.shape[1] != n, **device._asdict(),
    )  # fmt: skip
    arrays = rows, row_scales, weights, weight_scales, group_sizes
    return _multiplied(request, arrays, dtype, implementation, numbers_by, expected, interpret)


def grouped_tiled_weight_gradients(
    rows: Shaped[Array, "m k"],
    row_scales: Float[Array, "tiles k"],
    d_out: Shaped[Array, "m n"],
    d_out_scales: Float[Array, "tiles n"],
    group_sizes: Int[Array, " groups"],
    dtype: Any = jnp.bfloat16,
    *,
    implementation: str = "auto",
    numbers_by: str = "auto",
    expected: int | None = None,
    interpret: bool = False,
) -> Float[Array, "groups k n"]:
    """The sum over each group's rows of `row^T d_out`, of what the codes stand for; 0 for empty groups.

    Both operands have a scale for each m / tiles neighbouring rows of a column, and each group has whole tiles. They
    are transposed here, which XLA does where it makes the codes, if a kernel multiplies them.

    Args:
        rows: Codes of 8 bits, sorted by group, each group's in whole tiles. Rows behind the last group do not count.
        row_scales: Powers of two.
        d_out: Codes of 8 bits, perhaps of the other format.
        d_out_scales: Powers of two.
        group_sizes: Rows of each group, multiples of a tile's; this is not checked.
        dtype: Of the result; sums are float32.
        implementation: As in `grouped_tiled_matmul`, and so are `numbers_by` and `interpret`.
        expected: Rows of all groups together, filled-up ones too, as far as is known when compiling.

    Raises:
        ValueError: If shapes or formats do not fit together, or what is named does not support them.
    """
    check_gradients(rows, row_scales, d_out, d_out_scales, group_sizes)
    device = INTERPRETER if interpret else target()
    (m, k), n = rows.shape, d_out.shape[1]
    request = Request(
        (str(rows.dtype), str(d_out.dtype)), m, n, k, m // row_scales.shape[0], dtype=str(jnp.dtype(dtype)),
        groups=group_sizes.shape[0], squares=False, of="weights", **device._asdict(),
    )  # fmt: skip
    arrays = rows, row_scales, d_out, d_out_scales, group_sizes
    return _multiplied(request, arrays, dtype, implementation, numbers_by, expected, interpret)


def _multiplied(
    request: Request, arrays: tuple[Array, ...], dtype: Any, implementation: str, numbers_by: str,
    expected: int | None, interpret: bool,
) -> Array:  # fmt: skip
    chosen = REGISTRY[REGISTRY.chosen(implementation, request).name]
    options: dict[str, Any] = {"numbers_by": numbers_by} if chosen.by_numbers else {"interpret": interpret}
    multiply = chosen.grouped_tiled_matmul if request.of == "rows" else chosen.of_weights
    with expecting(request.m if expected is None else expected):
        return multiply(*vary_alike(arrays), dtype, **options)


def check(rows: Array, row_scales: Array, weights: Array, weight_scales: Array, sizes: Array) -> None:
    """Refuse shapes and formats that do not fit together. Raises `ValueError`."""
    shapes = (
        f"rows {rows.shape} with scales {row_scales.shape}, weights {weights.shape} with scales "
        f"{weight_scales.shape} and group sizes {sizes.shape}"
    )
    ranks = tuple(x.ndim for x in (rows, row_scales, weights, weight_scales, sizes))
    if ranks != (2, 2, 3, 3, 1) or rows.shape[1] != weights.shape[2]:
        raise ValueError(
            "a grouped matmul of tiles is of rows [m, k], weights [groups, n, k] with scales of both, and sizes "
            f"[groups], got {shapes}"
        )
    tiles, of_rows = row_scales.shape[1], weight_scales.shape[1]
    fits = tiles and of_rows and rows.shape[1] % tiles == 0 and weights.shape[1] % of_rows == 0
    alike = row_scales.shape[0] == rows.shape[0] and weight_scales.shape[2] == tiles
    if not fits or not alike or not weights.shape[0] == weight_scales.shape[0] == sizes.shape[0]:
        raise ValueError(
            "scales are [m, tiles] and [groups, n or parts of it, tiles] with as many tiles of k, and there is a size "
            f"for each group, got {shapes}"
        )
    _check_forms(rows, weights)


def check_gradients(rows: Array, row_scales: Array, d_out: Array, d_out_scales: Array, sizes: Array) -> None:
    """Refuse shapes and formats that do not fit together. Raises `ValueError`."""
    shapes = (
        f"rows {rows.shape} with scales {row_scales.shape}, gradients {d_out.shape} with scales {d_out_scales.shape} "
        f"and group sizes {sizes.shape}"
    )
    ranks = tuple(x.ndim for x in (rows, row_scales, d_out, d_out_scales, sizes))
    if ranks != (2, 2, 2, 2, 1) or rows.shape[0] != d_out.shape[0]:
        raise ValueError(
            "gradients of matrices are of rows [m, k] and gradients [m, n] with scales of both, and sizes [groups], "
            f"got {shapes}"
        )
    tiles = row_scales.shape[0]
    fits = tiles and rows.shape[0] % tiles == 0 and d_out_scales.shape[0] == tiles
    if not fits or row_scales.shape[1] != rows.shape[1] or d_out_scales.shape[1] != d_out.shape[1]:
        raise ValueError(f"scales are [tiles, k] and [tiles, n] with as many tiles of the rows, got {shapes}")
    _check_forms(rows, d_out)


def _check_forms(left: Array, right: Array) -> None:
    if str(left.dtype) not in FORMS or str(right.dtype) not in FORMS:
        raise ValueError(f"codes are of {' or '.join(FORMS)}, got {left.dtype} and {right.dtype}")
