"""Seconds of grouped matmuls: rows of each expert times the expert's matrix.

A group's last tile of rows is half empty on average, and begins up to 8 rows early (`pallas_kernels.grouped_matmul`):
its products with a matrix take as long as those of 68 rows more, the gradient of the matrix as that of 35. What many
groups lose beyond that is measured: tokamax' tuning data for an H100 (openxla/tokamax, data/autotuning) has 652 TFLOP/s
for 8 groups, as dense matmuls of that shape, and for 128 and 256 groups of 1,024 to 4,096 rows 291 to 470 forward and
302 to 428 for the gradient of rows: `MANY` of the rate that this model has for the shape, as geometric mean.

Where no kernel multiplies them, a loop of plain XLA (`pallas_kernels.grouped_matmul.reference`) goes through blocks of
rows of one group each, as many products one after the other. Its time follows from these; it was not measured.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

from jaxpar.cost.operations import TILES, Device, aligned

FORWARD_ROWS = 68
"""Rows of a group that are computed for nothing, in products with its matrix."""
GRADIENT_ROWS = 35
"""The same in the gradient of the matrix."""
FEW_GROUPS, MANY_GROUPS = 8, 128
"""Groups up to which nothing is lost, and from which on no more is lost; between them by their logarithm."""
MANY = 0.73
"""Rate of many groups relative to few."""
LOOP_ROWS = 512
"""Rows of a block of the loop; a group's last block is half empty on average."""


class Products(NamedTuple):
    """The shapes that the products of a device's experts share."""

    device: Device
    groups: int
    """Experts."""
    item: int
    """Bytes of a number of rows."""
    loop: bool = False
    """Whether they run as a loop of plain XLA."""

    def matmul(self, rows: float, n: int, k: int, read: int | None = None) -> float:
        """Seconds of `rows` rows of k numbers times a matrix [k, n] for each group, of numbers of `read` bytes where
        these are others."""
        if self.loop:
            # Each block's product is written in float32, read, and written into the result.
            block = self.device.matmul(LOOP_ROWS, n, k, 1, 4, self.item)
            return self._blocks(rows) * (block + self.device.bytes_seconds(float(LOOP_ROWS * n * (4 + self.item))))
        return grouped_matmul(self.device, rows, self.groups, n, k, self.item, read)

    def gradient(self, rows: float, n: int, k: int, out_bytes: float, read: int) -> float:
        """Seconds of the gradient [k, n] of the matrix of each group, of `out_bytes` a number."""
        if self.loop:  # each block's product is added to its group's matrix in float32
            return self._blocks(rows) * self.device.matmul(k, n, LOOP_ROWS, 1, 8, self.item)
        return grouped_gradient(self.device, rows, self.groups, n, k, out_bytes, read)

    def _blocks(self, rows: float) -> float:
        return rows / LOOP_ROWS + self.groups / 2 if rows else 0.0


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
