"""Times that were measured on a machine, which replace what shares of its datasheet give near the sizes measured.

A row has sizes (of a product m, n and k; of attention the keys that a query sees; of a message its bytes) and seconds.
Between rows, and up to a factor of `NEAR` beyond them, a formula is scaled by what the rows took over what it gives for
theirs, as a geometric mean that the nearest rows decide. So at the sizes of a row the time is the row's, and nothing is
left of the share that the formula is for. Farther from all rows the formula stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from types import MappingProxyType
from typing import Annotated, NamedTuple

import numpy as np

from jaxpar.hardware.sources import assumed

NEAR: Annotated[float, assumed("how far measured shapes reach")] = 2.0
"""Largest factor between each size that is asked for and that of a row."""
NEAREST: Annotated[int, assumed("how many measured shapes a time is from")] = 8
"""The number of measured rows that decide a time."""


class Row(NamedTuple):
    """One measured time and the sizes that it was measured at."""

    sizes: tuple[float, ...]
    seconds: float


class Table(NamedTuple):
    """The common facts of all rows of a table."""

    what: str
    """`matmul`, `attention forward`, `attention backward`, or a kind of message: `gather`, `all_reduce`, `all_to_all`,
    `permute`."""
    of: tuple[int, ...]
    """For a product the bytes of a number, and whether it is added to an accumulator; for attention the width of a head
    and the bytes of a number; of a message the ranks and their hosts."""


class Asked(NamedTuple):
    """A time that was asked for."""

    table: Table
    sizes: tuple[float, ...]
    measured: bool
    """Whether there are rows near it."""


@dataclass(frozen=True, eq=False)
class Tables:
    """All rows of a machine; none where nothing was measured."""

    rows: Mapping[Table, Sequence[Row]] = MappingProxyType({})
    asked: set[Asked] | None = None
    """The times that were asked for; None if they are not recorded."""
    _logs: dict[Table, np.ndarray] = field(default_factory=dict, repr=False)
    """Logarithms of the sizes of a table's rows, [row, size]."""

    def recording(self) -> Tables:
        """The same rows, with a record of what is asked for."""
        return Tables(self.rows, set())

    def seconds(self, table: Table, sizes: tuple[float, ...], formula: Callable[..., float]) -> float:
        """Seconds at `sizes`; `formula` gives those that follow from shares, at any sizes."""
        if not self.rows and self.asked is None:
            return formula(*sizes)
        near = self._near(table, sizes)
        if self.asked is not None:
            self.asked.add(Asked(table, sizes, bool(near)))
        if not near:
            return formula(*sizes)
        ratios = sum(weight * log(row.seconds / formula(*row.sizes)) for weight, row in near)
        return formula(*sizes) * exp(ratios / sum(weight for weight, _ in near))

    def _near(self, table: Table, sizes: tuple[float, ...]) -> list[tuple[float, Row]]:
        """The nearest rows, with their weights: the inverse squares of the distances."""
        rows = self.rows.get(table, ())
        if not rows or min(sizes) <= 0:
            return []
        if table not in self._logs:
            self._logs[table] = np.log([row.sizes for row in rows])
        apart = np.abs(self._logs[table] - np.log(sizes))
        squares = np.square(apart).sum(1)
        order = np.argsort(squares, kind="stable")[:NEAREST]
        within = apart.max(1) <= log(NEAR) + 1e-9
        return [(float(1 / (squares[index] + 1e-9)), rows[index]) for index in order if within[index]]


NOTHING = Tables()
"""The tables of a machine where nothing was measured."""
