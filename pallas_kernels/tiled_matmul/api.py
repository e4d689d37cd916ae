"""Products of codes with scales of tiles, on any platform: `tiled_matmul` of two matrices, or of groups of rows and the
matrix of each group; `tiled_weight_gradients` of the rows of a group and the gradients of its outputs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.device import INTERPRETER, target
from pallas_kernels.grouped_matmul.work import expecting
from pallas_kernels.tiled_matmul.registry import REGISTRY, Request
from pallas_kernels.varying import vary_alike

FORMS = ("float8_e4m3fn", "float8_e5m2")


def tiled_matmul(
    left: Shaped[Array, "m k"],
    left_scales: Float[Array, "m tiles"],
    right: Shaped[Array, "*groups n k"],
    right_scales: Float[Array, "*groups row_tiles tiles"],
    group_sizes: Int[Array, " groups"] | None = None,
    dtype: Any = jnp.bfloat16,
    *,
    implementation: str = "auto",
    numbers_by: str = "auto",
    expected: int | None = None,
    interpret: bool = False,
) -> Float[Array, "m n"]:
    """`left @ right.T` of what the codes stand for, with `group_sizes` by the matrix of each row's group; summed in
    float32, without gradients.

    Both are summed over their last side, as the FP8 units of a Hopper read them. Products of 128 numbers are scaled and
    added up in float32 outside those units, whose own sums keep 14 bits (DeepSeek-V3, arXiv:2412.19437, section 3.3.2).

    Args:
        left: Codes of 8 bits, of groups sorted by group.
        left_scales: Powers of two, one for each k / tiles codes of a row.
        right: Codes of 8 bits, perhaps of the other format: a matrix, or one for each group.
        right_scales: The same, for each row or for as many rows together as there are codes in a tile.
        group_sizes: Rows of each group, integers from 0: the first are of group 0, the next of group 1, and so on; rows
            behind the last group give 0.
        dtype: Of the result.
        implementation: `auto`, or by name: see `registry.REGISTRY`.
        numbers_by: The implementation of `pallas_kernels.grouped_matmul` that multiplies what the codes of groups stand
            for, where codes are not multiplied.
        expected: As in `pallas_kernels.grouped_matmul.grouped_matmul`, of groups.
        interpret: Run the kernel in Pallas' interpreter, for tests.

    Raises:
        ValueError: If shapes or formats do not fit together, or what is named does not support them.
    """
    arrays = left, left_scales, right, right_scales, group_sizes
    check(*arrays)
    (m, k), n = left.shape, right.shape[-2]
    request = Request(
        (str(left.dtype), str(right.dtype)), m, n, k, k // left_scales.shape[1], dtype=str(jnp.dtype(dtype)),
        groups=None if group_sizes is None else len(group_sizes), squares=right_scales.shape[-2] != n,
        **(INTERPRETER if interpret else target())._asdict(),
    )  # fmt: skip
    return _multiplied(request, arrays, dtype, implementation, numbers_by, expected, interpret)


def tiled_weight_gradients(
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
        implementation: As in `tiled_matmul`, and so are `numbers_by` and `interpret`.
        expected: Rows of all groups together, filled-up ones too, as far as is known when compiling.

    Raises:
        ValueError: If shapes or formats do not fit together, or what is named does not support them.
    """
    arrays = rows, row_scales, d_out, d_out_scales, group_sizes
    check_gradients(*arrays)
    (m, k), n = rows.shape, d_out.shape[1]
    request = Request(
        (str(rows.dtype), str(d_out.dtype)), m, n, k, m // row_scales.shape[0], dtype=str(jnp.dtype(dtype)),
        groups=len(group_sizes), squares=False, of="weights", **(INTERPRETER if interpret else target())._asdict(),
    )  # fmt: skip
    return _multiplied(request, arrays, dtype, implementation, numbers_by, expected, interpret)


def _multiplied(
    request: Request, arrays: tuple[Array | None, ...], dtype: Any, implementation: str, numbers_by: str,
    expected: int | None, interpret: bool,
) -> Array:  # fmt: skip
    chosen = REGISTRY[REGISTRY.chosen(implementation, request).name]
    options: dict[str, Any] = {"interpret": True} if interpret else {}
    options = {"numbers_by": numbers_by} if chosen.by_numbers else options
    multiply = chosen.tiled_matmul if request.of == "rows" else chosen.of_weights
    assert multiply is not None, f"{chosen.name} refuses gradients of weights"
    of_groups = expecting(request.m if expected is None else expected) if request.groups is not None else nullcontext()
    with of_groups:
        return multiply(*vary_alike(arrays), dtype, **options)


def check(left: Array, left_scales: Array, right: Array, right_scales: Array, sizes: Array | None) -> None:
    """Refuse shapes and formats that do not fit together. Raises `ValueError`."""
    shapes = f"{left.shape} with scales {left_scales.shape} and {right.shape} with scales {right_scales.shape}"
    shapes += "" if sizes is None else f" and group sizes {sizes.shape}"
    groups = () if sizes is None else sizes.shape
    ranks = tuple(x.ndim for x in (left, left_scales, right, right_scales))
    of_groups = len(groups) == (sizes is not None)
    if ranks != (2, 2, 2 + len(groups), 2 + len(groups)) or not of_groups or left.shape[1] != right.shape[-1]:
        raise ValueError(
            "a matmul of tiles is of [m, k] and [n, k], or of rows [m, k], weights [groups, n, k] and sizes [groups], "
            f"with scales of both, got {shapes}"
        )
    (n, k), (rows, tiles) = right.shape[-2:], right_scales.shape[-2:]
    fits = tiles and rows and k % tiles == 0 and n % rows == 0
    squares = n * tiles == rows * k
    if not fits or not (squares or rows == n or groups) or left_scales.shape != (left.shape[0], tiles):
        raise ValueError(f"scales are [m, tiles] and [n or squares of it, tiles] with as many tiles of k, got {shapes}")
    if not right.shape[:-2] == right_scales.shape[:-2] == groups:
        raise ValueError(f"there are a matrix, its scales and a size for each group, got {shapes}")
    _check_forms(left, right)


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
