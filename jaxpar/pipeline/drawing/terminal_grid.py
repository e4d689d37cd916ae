"""A schedule in time on a terminal: colored boxes, or letters for each action where there is no color."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import ceil, floor, log10

from rich.console import Console
from rich.style import Style
from rich.text import Text

from jaxpar.pipeline.actions import Action, Kind, parse_action
from jaxpar.pipeline.drawing.colors import color, hexadecimal, ink
from jaxpar.pipeline.drawing.grid import NEARLY, Cells, cells_of_time
from jaxpar.pipeline.drawing.words import kind_name, number
from jaxpar.pipeline.timing.per_chunk import Number
from jaxpar.pipeline.timing.simulate import Simulation

MOST_LINES = 60
"""Most lines of a grid; a longer one is scaled down to fit, without microbatches."""
FINEST = 8
"""Most columns of the longest action, however short the shortest is."""


def print_grid(simulation: Simulation, console: Console) -> None:
    """A line for each rank, in as many bands below each other as the width requires."""
    colored = console.color_system is not None
    lengths = sorted(event.end - event.start for event in simulation.timeline if event.end > event.start)
    step = max(lengths[0], lengths[-1] / FINEST) if lengths else 1
    cells = cells_of_time(simulation, step)
    ranks, columns = len(cells), len(cells[0])
    name = len(f"rank {ranks - 1}") + 2
    room = console.width - name
    width = _cell_width(simulation, colored, columns, room)
    each = max(1, room // width)
    bands = [range(first, min(first + each, columns)) for first in range(0, columns, each)]
    small = len(bands) > max(2, MOST_LINES // (ranks + 2))
    if small:
        step, width, bands = simulation.makespan / room, 1, [range(room)]
    for band in bands:
        drawn = _overview(simulation, room, colored) if small else _boxes(simulation, cells, band, width, colored)
        for rank, line in enumerate([_times(band, step, width), *drawn], start=-1):
            text = Text.assemble((f"{f'rank {rank}' if rank >= 0 else 'time':<{name}}", "dim"), line)
            text.rstrip()
            console.print(text, no_wrap=True, crop=True)
        console.print()
    console.print(_legend(simulation, colored, small))


def _cell_width(simulation: Simulation, colored: bool, columns: int, room: int) -> int:
    """Letters for the shortest action and the gap after it; wider where everything fits."""
    if not colored:
        return 1 + max((len(str(event.action)) for event in simulation.timeline), default=1)
    digits = len(str(simulation.schedule.microbatches - 1))
    return digits + 2 if columns * (digits + 2) <= room else digits + 1


def _times(band: range, step: Number, width: int) -> Text:
    """Round times above their columns."""
    first, last, room = float(band.start * step), float(band.stop * step), len(band) * width
    finest = floor(log10((last - first) / room))
    for apart in (n * 10.0**power for power in count(finest) for n in (1, 2, 5)):
        marks = [i * apart for i in range(ceil(first / apart - NEARLY), ceil(last / apart - NEARLY))]
        if sum(len(number(mark)) + 2 for mark in marks) <= room:
            break
    line = ""
    for mark in marks:
        line = line.ljust(int((mark - first) / float(step) + NEARLY) * width) + number(mark)
    return Text(line, "dim")


def _boxes(simulation: Simulation, cells: Cells, band: range, width: int, colored: bool) -> Iterator[Text]:
    """Lines of each rank with the actions of a band of columns."""
    for row in cells:
        line = Text()
        column = band.start
        while column < band.stop:
            length = next(n for n in count(1) if column + n >= band.stop or row[column + n] != "-")
            word = row[column] if row[column] != "-" else ""
            if not row[column]:
                line.append(".".ljust(width), "dim")
            elif colored:
                action = parse_action(next(row[at] for at in range(column, -1, -1) if row[at] != "-"))
                label = str(action.microbatch) if word else ""
                line.append(label.center(length * width - 1), _style(simulation, action)).append(" ")
            else:
                line.append(f"{word.ljust(length * width - 1, '-')} ")
            column += length
        yield line


def _overview(simulation: Simulation, columns: int, colored: bool) -> Iterator[Text]:
    """Lines of each rank with a letter per column for the most frequent kind of action."""
    width = simulation.makespan / columns
    for rank in range(simulation.schedule.ranks):
        shares: list[dict[tuple[Kind, int], Number]] = [{} for _ in range(columns)]
        for event in (event for event in simulation.timeline if event.rank == rank):
            what = event.action.kind, event.action.chunk
            for column in range(int(event.start / width), min(columns, ceil(event.end / width))):
                inside = min(event.end, (column + 1) * width) - max(event.start, column * width)
                shares[column][what] = shares[column].get(what, 0) + inside
        line = Text()
        for share in shares:
            if 2 * sum(share.values()) < width:
                line.append(".", "dim")
                continue
            kind, chunk = max(share, key=lambda what: share[what])
            line.append(kind.value, _style(simulation, Action(kind, 0, chunk)) if colored else "")
        yield line


def _style(simulation: Simulation, action: Action) -> Style:
    schedule = simulation.schedule
    lap = schedule.chunks_of[schedule.rank_of[action.chunk]].index(action.chunk)
    paper = color(action.kind, lap, schedule.virtual_stages)
    return Style(color=hexadecimal(ink(paper)), bgcolor=hexadecimal(paper))


def _legend(simulation: Simulation, colored: bool, small: bool) -> Text:
    schedule = simulation.schedule
    names = [(kind, kind_name(kind, schedule)) for kind in schedule.kinds]
    cell = "what a rank does most of the time in a column; --out FILE.svg draws all" if small else ""
    if not colored:
        letters = ", ".join(f"{kind.value} {name}" for kind, name in names)
        cell = cell or "2F0 is chunk 2, forward, microbatch 0"
        return Text(f"{letters}, . bubble; {cell}", "dim")
    parts = []
    for kind, name in names:
        parts += [(" ", _style(simulation, Action(kind, 0, chunk))) for chunk in schedule.chunks_of[0]]
        parts.append((f" {kind.value} {name}   ", "dim"))
    shades = "; shades are a rank's chunks, first to last" if schedule.virtual_stages > 1 else ""
    return Text.assemble(*parts, (f". bubble   {cell or 'numbers are microbatches'}{shades}", "dim"))
