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
from typing import Annotated, NamedTuple

from jaxpar.cost.operations import TILES, Device, aligned
from jaxpar.hardware.sources import cited, derived

FORWARD_ROWS: Annotated[int, derived("half a tile of 128, and 4 of the 8 rows that it begins early")] = 68
"""Rows of a group that are computed for nothing, in products with its matrix."""
GRADIENT_ROWS: Annotated[int, derived("half a tile of 64, and its early rows")] = 35
"""The same in the gradient of the matrix."""
TOKAMAX = cited("openxla/tokamax, data/autotuning, H100: 8 groups and 128 to 256 of 1,024 to 4,096 rows")
FEW_GROUPS: Annotated[int, TOKAMAX] = 8
"""Groups up to which nothing is lost; between these and `MANY_GROUPS` it is lost by their logarithm."""
MANY_GROUPS: Annotated[int, TOKAMAX] = 128
"""Groups from which on no more is lost."""
MANY: Annotated[float, TOKAMAX] = 0.73
"""Rate of many groups relative to few."""
LOOP_ROWS: Annotated[int, derived("pallas_kernels.grouped_matmul.reference")] = 512
"""Rows of a block of the loop; a group's last block is half empty on average."""

ADDED: Annotated[float, derived("two read, one written")] = 3.0
"""Numbers read and written to add a slice's gradient of a weight to another's."""
LOCAL_ADDED: Annotated[float, derived("one read")] = 1.0
"""The same of a rank's local rows: the pass that adds the slices' gradients reads one more."""


class Products(NamedTuple):
    """Products of rows with the matrices of so many groups on one device."""

    device: Device
    groups: int
    """The number of experts."""
    item: int
    """Bytes of a number of rows."""
    loop: bool = False
    """Whether they run as a loop of plain XLA."""

    def matmul(self, rows: float, n: int, k: int, read: int | None = None) -> float:
        """Seconds of `rows` rows of k numbers times a matrix [k, n] for each group. Numbers that are multiplied have
        `read` bytes, where these are others."""
        device, groups, item = self.device, self.groups, self.item
        if self.loop:
            return self._blocks(rows) * device.matmul(LOOP_ROWS, n, k, 1, 4, item)
        filled, read = rows + FORWARD_ROWS * groups, item if read is None else read
        moved = (rows * k + groups * k * n) * read + rows * n * item
        return max(self._compute(filled, n, k, read), device.bytes_seconds(moved))

    def gradient(self, rows: float, n: int, k: int, out_bytes: float, read: int) -> float:
        """Seconds of the gradient [k, n] of the matrix of each group, of `out_bytes` a number."""
        groups = self.groups
        if self.loop:  # each block's product is added to its group's matrix in float32
            return self._blocks(rows) * self.device.matmul(k, n, LOOP_ROWS, 1, 8, self.item)
        moved = rows * (k + n) * read + groups * k * n * out_bytes
        each = max(1.0, rows / groups) + GRADIENT_ROWS
        return max(self._compute(float(groups * k), n, each, read), self.device.bytes_seconds(moved))

    def copied(self, rows: float, n: int, k: int) -> float:
        """Bytes that a loop copies for `matmul`: each block's rows and matrix, and its float32 product into the
        result."""
        each = 2 * self.item * k * (LOOP_ROWS + n) + (4 + self.item) * LOOP_ROWS * n
        return self._blocks(rows) * each if self.loop else 0.0

    def gradient_copied(self, rows: float, n: int, k: int) -> float:
        """The same for `gradient`: each block's rows, and the group's float32 sum, out of all and into them."""
        return self._blocks(rows) * (2 * self.item * LOOP_ROWS * (k + n) + 16 * k * n) if self.loop else 0.0

    def _blocks(self, rows: float) -> float:
        return rows / LOOP_ROWS + self.groups / 2 if rows else 0.0

    def _compute(self, m: float, n: int, k: float, item: int) -> float:
        """Seconds of the tensor cores for m x n results, each a sum over k."""
        device, model = self.device, self.device.model
        tile = min(rows * columns for rows, columns, _ in TILES)
        waves = max(1.0, m * n / (tile * model.multiprocessors))  # of fewer tiles some processors have none
        many = log2(max(1, self.groups) / FEW_GROUPS) / log2(MANY_GROUPS / FEW_GROUPS)
        share = 1.0 - (1.0 - MANY) * min(1.0, max(0.0, many))
        rate = device.matmul_rate(item) * share * aligned(n, item)
        return waves * tile * model.multiprocessors * 2.0 * (k + model.matmul_ramp) / rate


def added_numbers(slices: int, local_first: bool) -> float:
    """Numbers read and written, for each weight, to add the gradients of all parts in which rows are multiplied."""
    return ADDED * (slices - 1) + LOCAL_ADDED * local_first
