"""Schedules as grids of text: a row for each rank, a column for each tick, place in the order, or step of time."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

from jaxpar.pipeline.table import Order, Tick
from jaxpar.pipeline.timing.per_chunk import Number
from jaxpar.pipeline.timing.simulate import Simulation

type Cells = list[list[str]]
"""Texts of a grid, `cells[rank][column]`."""

AROUND = 6
"""Columns to show on either side of a marked cell."""

NEARLY = 1e-6
"""Share of a column: a time this close to the next column counts as in it, to absorb rounding."""


def cells_of_ticks(ticks: Sequence[Tick]) -> Cells:
    """A column for each tick, with up to three actions in a cell."""
    return [[" ".join(map(str, tick[rank])) for tick in ticks] for rank in range(len(ticks[0]))] if ticks else []


def cells_of_orders(orders: Sequence[Order]) -> Cells:
    """A column for each place in the order: actions in one column need not run at the same time."""
    longest = max(map(len, orders), default=0)
    return [[*map(str, order), *[""] * (longest - len(order))] for order in orders]


def cells_of_time(simulation: Simulation, step: Number | None = None) -> Cells:
    """A column for each `step` of time, the shortest action by default; a dash continues an action.

    An action that does not start with a column is put into the one in which it starts.
    """
    lengths = [event.end - event.start for event in simulation.timeline]
    step = step or min((length for length in lengths if length > 0), default=1)
    columns = max((ceil(event.end / step - NEARLY) for event in simulation.timeline), default=0)
    cells = [[""] * columns for _ in range(simulation.schedule.ranks)]
    for event in simulation.timeline:
        first, last = floor(event.start / step + NEARLY), floor(event.end / step + NEARLY)
        for column in range(first, min(max(last, first + 1), columns)):
            cells[event.rank][column] = str(event.action) if column == first else "-"
    return cells


def grid(cells: Cells, *, mark: tuple[int, int] | None = None, even: bool = False) -> str:
    """Cells as aligned text under numbered columns; `even` makes all as wide as the widest, so that time is to scale.

    With `mark`, a (row, column) of `cells` or past a row's end, that cell is shown in > < with only the columns around
    it.
    """
    length = max([0 if mark is None else mark[1] + 1, *map(len, cells)])
    start, stop = 0, length
    if mark is not None:
        start, stop = max(0, mark[1] - AROUND), min(length, mark[1] + AROUND + 1)
    shown = [[*row, *[""] * (length - len(row))][start:stop] for row in cells]
    if mark is not None:
        row, column = mark
        shown[row][column - start] = f">{shown[row][column - start] or ' '}<"
    head = [str(column) for column in range(start, stop)]
    widths = [max(map(len, column)) for column in zip(head, *shown, strict=True)]
    if even:
        widths = [max(widths, default=0)] * len(widths)
    label = len(f"rank {len(cells) - 1}")
    rows = [("", head), *((f"rank {rank}", row) for rank, row in enumerate(shown))]
    lines = [
        f"{name:{label}} | " + " ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        for name, row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
