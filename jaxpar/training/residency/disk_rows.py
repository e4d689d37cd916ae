"""Arrays on disk in the form of a checkpoint: rows in model order, one piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from jaxpar.checkpoint.pieces import Pieces, Region
from jaxpar.memory import streaming
from jaxpar.memory.disk_array import DiskArray
from jaxpar.mesh.layer_order import PADDING


@dataclass(frozen=True)
class DiskRows(Pieces):
    """A disk array, or a placeholder for one.

    Args:
        local_shape: of the part of one device.
        file: returns the array; a new one when restoring.
        numbers: which row of the checkpoint each row of the array is, `PADDING` for none; None where they are the same.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    local_shape: tuple[int, ...]
    file: Callable[[], DiskArray]
    numbers: tuple[int, ...] | None = None

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """Rows per piece: divides the rows of a part, so that no piece spans two; 1 where rows are not in order."""
        rows, *others = self.local_shape
        most = max(1, streaming.PIECE_BYTES // max(1, self.dtype.itemsize * prod(others)))
        return (1 if self.numbers else max(n for n in range(1, min(rows, most) + 1) if rows % n == 0), *others)

    def pieces(self) -> Iterator[tuple[Region, np.ndarray]]:
        """The parts that this process has to save."""
        rows = self.piece_shape[0]
        for region, part in self.file().own_parts():
            for first, number, count in self._runs(region, rows):
                yield (slice(number, number + count), *region[1:]), part[first : first + count]

    def restored(self, read: Callable[[Region], np.ndarray], rows: int) -> DiskArray:
        """New files with what `read` returns; rows that are in no checkpoint are zeros."""
        array = self.file()
        for region, part in array.parts():
            for first, number, count in self._runs(region, rows):
                part[first : first + count] = read((slice(number, number + count), *region[1:]))
        return array

    def _runs(self, region: Region, most: int) -> Iterator[tuple[int, int, int]]:
        """(row of the part, row of the checkpoint, rows) that follow one another in both, up to multiples of `most`."""
        whole = range(self.shape[0]) if self.numbers is None else self.numbers
        numbers = whole[region[0]]
        first = 0
        while first < len(numbers):
            number, count = numbers[first], 1
            if number == PADDING:
                first += 1
                continue
            while (number + count) % most and first + count < len(numbers) and numbers[first + count] == number + count:
                count += 1
            yield first, number, count
            first += count
