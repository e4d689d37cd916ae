"""Schedules in CSV files: written by hand or by other tools, and read back.

One line per rank. Its cells, from left to right, are the rank's actions, as in `2F0` (chunk 2, forward, microbatch 0).
Chunks are numbered in model order over all ranks, as in the CSV files of torch.distributed.pipelining. A schedule that
contains a W splits the backward. All actions of a chunk are in the line of its rank.

    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1

By default the cells of a line only give the order of the rank's actions: empty cells align the columns, and
`lockstep_ticks` sets the ticks. If the first line is `# ticks`, each column is a tick: a cell is empty or has at most
one F, one B and one W, separated by spaces.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from jaxpar.pipeline.actions import Action, Kind, parse_action
from jaxpar.pipeline.drawing.grid import cells_of_orders, cells_of_ticks, grid
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.lockstep import lockstep_ticks
from jaxpar.pipeline.table import Schedule, Tick
from jaxpar.pipeline.validation import validate, validate_orders

TICKS = "# ticks"
"""The first line of a file whose columns are ticks."""


@dataclass(frozen=True)
class _Cell:
    """An action in a file; line and column are 1-based."""

    action: Action
    rank: int
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.action} (line {self.line}, column {self.column})"


def read_schedule(path: Path | str) -> Schedule:
    """The schedule in a CSV file, checked; its name is the file's name without the suffix.

    Raises ScheduleError, with line and column, for cells that are not actions, for actions that are repeated, missing
    or on the wrong line, and for a schedule that `validate` rejects; OSError if the file cannot be read.
    """
    path = Path(path)
    return parse_schedule(path.read_text(encoding="utf-8-sig"), name=path.stem)


def parse_schedule(text: str, name: str) -> Schedule:
    """The schedule in the text of a CSV file, checked (see `read_schedule`)."""
    lines = text.splitlines()
    numbered = enumerate(csv.reader(lines), start=1)
    rows = [(line, row) for line, row in numbered if any(row) and not row[0].startswith("#")]
    cells = list(_cells(rows, name))
    if not cells:
        raise ScheduleError(f"{name}: there are no actions, expected a line of them for each rank")
    rank_of = _placement(cells, len(rows), name)
    schedule = Schedule(
        name=name,
        ranks=len(rows),
        microbatches=1 + max(cell.action.microbatch for cell in cells),
        virtual_stages=len(rank_of) // len(rows),
        rank_of=rank_of,
        splits_backward=any(cell.action.kind is Kind.WEIGHT for cell in cells),
        orders=tuple(tuple(cell.action for cell in cells if cell.rank == rank) for rank in range(len(rows))),
        ticks=_ticks(cells, len(rows)),
    )
    _check_once(schedule, cells, [line for line, _ in rows])
    if lines[0].strip().lower() != TICKS:
        validate_orders(schedule)
        schedule = replace(schedule, ticks=lockstep_ticks(schedule.orders, schedule.chunks))
    validate(schedule)
    return schedule


def format_schedule(schedule: Schedule, columns: Literal["orders", "ticks"] = "orders") -> str:
    """`schedule` as the text of a CSV file that `parse_schedule` reads back: its orders, or a column for each tick."""
    text = io.StringIO()
    if columns == "ticks":
        text.write(TICKS + "\n")
    cells = cells_of_ticks(schedule.ticks) if columns == "ticks" else cells_of_orders(schedule.orders)
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue()


def _cells(rows: Sequence[tuple[int, list[str]]], name: str) -> Iterator[_Cell]:
    for rank, (line, row) in enumerate(rows):
        for column, cell in enumerate(row, start=1):
            for text in cell.split():
                try:
                    action = parse_action(text)
                except ScheduleError as error:
                    raise ScheduleError(f"{name}, line {line}, column {column}: {error}") from None
                yield _Cell(action, rank, line, column)


def _placement(cells: Sequence[_Cell], ranks: int, name: str) -> tuple[int, ...]:
    """Rank of each chunk, by the line of its actions."""
    first: dict[int, _Cell] = {}
    for cell in cells:
        other = first.setdefault(cell.action.chunk, cell)
        if other.rank != cell.rank:
            sentence = f"{name}: chunk {cell.action.chunk} is on two ranks, in {other} and in {cell}"
            raise ScheduleError(f"{sentence}\n{_marked(cells, ranks, cell)}")
    chunks = 1 + max(first)
    for chunk in range(chunks):
        if chunk not in first:
            raise ScheduleError(f"{name}: chunk {chunk} has no action, but a later chunk has {first[chunks - 1]}")
    if chunks % ranks:
        raise ScheduleError(f"{name}: {chunks} chunks cannot be shared evenly by {ranks} ranks, one for each line")
    return tuple(first[chunk].rank for chunk in range(chunks))


def _check_once(schedule: Schedule, cells: Sequence[_Cell], lines: Sequence[int]) -> None:
    """Raise ScheduleError for repeated or missing actions, by line and column of the file."""
    seen: dict[Action, _Cell] = {}
    for cell in cells:
        if cell.action in seen:
            sentence = f"{schedule.name}: {cell} is already in column {seen[cell.action].column}"
            raise ScheduleError(f"{sentence}\n{_marked(cells, schedule.ranks, cell)}")
        seen[cell.action] = cell
    for microbatch in range(schedule.microbatches):
        for chunk, rank in enumerate(schedule.rank_of):
            for kind in schedule.kinds:
                action = Action(kind, microbatch, chunk)
                if action not in seen:
                    sentence = f"{schedule.name}: {action} is missing in line {lines[rank]} (rank {rank})"
                    raise ScheduleError(f"{sentence}\n{_marked(cells, schedule.ranks, rank)}")


def _marked(cells: Sequence[_Cell], ranks: int, fault: _Cell | int) -> str:
    """Format the actions as a grid of orders, with `fault` marked: a cell, or the end of a rank's line."""
    by_rank = [[cell for cell in cells if cell.rank == rank] for rank in range(ranks)]
    rows = [[str(cell.action) for cell in row] for row in by_rank]
    mark = (fault, len(rows[fault])) if isinstance(fault, int) else (fault.rank, by_rank[fault.rank].index(fault))
    return grid(rows, mark=mark)


def _ticks(cells: Sequence[_Cell], ranks: int) -> tuple[Tick, ...]:
    """Convert columns to ticks."""
    table: list[list[tuple[Action, ...]]] = [[()] * ranks for _ in range(max(cell.column for cell in cells))]
    for cell in cells:
        table[cell.column - 1][cell.rank] += (cell.action,)
    return tuple(map(tuple, table))
