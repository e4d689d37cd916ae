"""Arrays in files as checkpoints have them: their rows in the order of the model, a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from jaxpar.checkpoint.pieces import Pieces, Region
from jaxpar.memory import streaming
from jaxpar.memory.filed import FiledArray
from jaxpar.mesh.layer_order import PADDING


@dataclass(frozen=True)
class FiledRows(Pieces):
    """A filed array, or the place for one.

    Args:
        local_shape: of the part of one device.
        file: gives the array; a new one where it is restored.
        numbers: which row of the checkpoint each row of the array is, `PADDING` for none; None where they are the same.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    local_shape: tuple[int, ...]
    file: Callable[[], FiledArray]
    numbers: tuple[int, ...] | None = None

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """Rows that divide those of a part, so that no piece has rows of two; one where they are not in order."""
        rows, *others = self.local_shape
        most = max(1, streaming.PIECE_BYTES // max(1, self.dtype.itemsize * prod(others)))
        return (1 if self.numbers else max(n for n in range(1, min(rows, most) + 1) if rows % n == 0), *others)

    def pieces(self) -> Iterator[tuple[Region, np.ndarray]]:
        """Those of the parts that this process has to save."""
        rows = self.piece_shape[0]
        for region, part in self.file().own_parts():
            for first, number, count in self._runs(region, rows):
                yield (slice(number, number + count), *region[1:]), part[first : first + count]

    def restored(self, read: Callable[[Region], np.ndarray], rows: int) -> FiledArray:
        """New files with what `read` gives; rows that are in no checkpoint are zeros."""
        filed = self.file()
        for region, part in filed.parts():
            for first, number, count in self._runs(region, rows):
                part[first : first + count] = read((slice(number, number + count), *region[1:]))
        return filed

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
