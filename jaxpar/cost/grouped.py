"""Seconds of grouped matmuls: rows of each expert times the expert's matrix.

A group's last tile of rows is half empty on average, and begins up to 8 rows early (`pallas_kernels.grouped_matmul`):
its products with a matrix take as long as those of 68 rows more, the gradient of the matrix as that of 35. What many
groups lose beyond that is measured: tokamax' tuning data for an H100 (openxla/tokamax, data/autotuning) has 652 TFLOP/s
for 8 groups, as dense matmuls of that shape, and for 128 and 256 groups of 1,024 to 4,096 rows 291 to 470 forward and
302 to 428 for the gradient of rows: `MANY` of the rate that this model has for the shape, as geometric mean.
"""

from __future__ import annotations

from math import log2

from jaxpar.cost.operations import TILES, Device, aligned

FORWARD_ROWS = 68
"""Rows of a group that are computed for nothing, in products with its matrix."""
GRADIENT_ROWS = 35
"""The same in the gradient of the matrix."""
FEW_GROUPS, MANY_GROUPS = 8, 128
"""Groups up to which nothing is lost, and from which on no more is lost; between them by their logarithm."""
MANY = 0.73
"""Rate of many groups relative to few."""


def grouped_matmul(
    device: Device, rows: float, groups: int, n: int, k: int, item: int, read: int | None = None
) -> float:
    """Seconds of `rows` rows of k numbers, of so many groups, times a matrix [k, n] for each group. Numbers have `item`
    bytes, and those that are multiplied `read`, if these are others."""
    filled, read = rows + FORWARD_ROWS * groups, item if read is None else read
    moved = (rows * k + groups * k * n) * read + rows * n * item
    return max(_compute(device, filled, n, k, groups, read), device.bytes_seconds(moved))


def grouped_gradient(device: Device, rows: float, groups: int, n: int, k: int, out_bytes: float, item: int) -> float:
    """Seconds of the gradient [k, n] of the matrix of each group, of so many bytes a number."""
    moved = rows * (k + n) * item + groups * k * n * out_bytes
    each = max(1.0, rows / groups) + GRADIENT_ROWS
    return max(_compute(device, float(groups * k), n, each, groups, item), device.bytes_seconds(moved))


def _compute(device: Device, m: float, n: int, k: float, groups: int, item: int) -> float:
    """Seconds of the tensor cores for m x n results, each a sum over k."""
    tiles, units = min(((rows * columns) for rows, columns, _ in TILES)), device.model.multiprocessors
    waves = max(1.0, m * n / (tiles * units))  # of fewer tiles than processors, some processors have none
    rate = device.matmul_rate(item) * share_of(groups) * aligned(n, item)
    return waves * tiles * units * 2.0 * (k + device.model.matmul_ramp) / rate


def share_of(groups: int) -> float:
    """Rate of so many groups relative to a dense matmul."""
    steps = log2(MANY_GROUPS / FEW_GROUPS)
    return 1.0 - (1.0 - MANY) * min(1.0, max(0.0, log2(max(1, groups) / FEW_GROUPS) / steps))
