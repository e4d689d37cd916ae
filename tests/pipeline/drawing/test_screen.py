"""Schedules on terminals of any width, with color and without."""

import io
import re
from functools import cache

import pytest
from rich.console import Console

from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.drawing.colors import color
from jaxpar.pipeline.drawing.screen import print_comparison, print_summary
from jaxpar.pipeline.drawing.summary import Summary, compare
from jaxpar.pipeline.schedules import make_schedule
from jaxpar.pipeline.timing.simulate import Mode
from jaxpar.pipeline.timing.workload import Workload

BACKGROUND = r"48;2;(\d+);(\d+);(\d+)m([^\x1b]*)"


def screen(width: int, *, colored: bool = False) -> Console:
    """A terminal, or a file where nothing is colored."""
    system = "truecolor" if colored else None
    file = io.StringIO()
    return Console(file=file, width=width, force_terminal=colored, color_system=system, highlight=False, record=True)


@cache
def summary(name: str = "1f1b", ranks: int = 4, microbatches: int = 8) -> Summary:
    return Summary(make_schedule(name, ranks=ranks, microbatches=microbatches), Workload())


def shown(found: Summary, width: int, *, colored: bool = False, mode: Mode = "async") -> list[str]:
    console = screen(width, colored=colored)
    print_summary(found, mode, console)
    return console.export_text().splitlines()


def bands(lines: list[str]) -> list[list[str]]:
    """Lines of the grid, band by band: the times, then a line for each rank."""
    starts = [at for at, line in enumerate(lines) if line.startswith("time")]
    return [lines[at : at + 1 + sum(line.startswith("rank ") for line in lines[at : at + 6])] for at in starts]


@pytest.mark.parametrize(
    ("width", "colored", "count"),
    [(40, False, 5), (80, False, 2), (110, False, 2), (200, False, 1), (40, True, 3), (80, True, 1), (200, True, 1)],
)
def test_every_action_is_there_and_no_line_is_wider_than_the_terminal(width: int, colored: bool, count: int):
    lines = shown(summary(), width, colored=colored)
    assert max(map(len, lines)) <= width
    found = bands(lines)
    assert len(found) == count
    words = [word.strip("-") for band in found for line in band[1:] for word in line.split()[2:]]
    if not colored:
        orders = summary().schedule.orders
        assert sorted(word for word in words if "F" in word or "B" in word) == sorted(
            str(action) for order in orders for action in order
        )


def test_what_happens_at_a_time_stands_below_it():
    (times, *ranks), *_ = bands(shown(summary(), 200))
    assert {times.index(" 10 ") + 1} == {ranks[0].index("0B0"), ranks[1].index("1F3"), ranks[3].index("3B2")}
    assert times.index(" 4 ") + 1 == ranks[3].index("3B0")


def test_colors_are_those_of_kind_and_chunk():
    console = screen(200, colored=True)
    print_summary(summary("zb-v"), "async", console)
    assert isinstance(console.file, io.StringIO)
    line = next(line for line in console.file.getvalue().splitlines() if "rank 0" in line)
    boxes = [(words[3].strip(), tuple(map(int, words[:3]))) for words in re.findall(BACKGROUND, line)]
    shade = {(kind, lap): color(kind, lap, 2) for kind in Kind for lap in range(2)}
    assert boxes[:7] == [(str(m), shade[Kind.FORWARD, 0]) for m in range(7)]
    assert boxes[7:10] == [("0", shade[kind, 1]) for kind in Kind]


@pytest.mark.parametrize("colored", [False, True])
def test_what_would_fill_screens_is_drawn_small(colored: bool):
    lines = shown(summary("1f1b", 16, 200), 100, colored=colored)
    (start,) = [at for at, line in enumerate(lines) if line.startswith("time")]
    first, last = lines[start + 1], lines[start + 16]
    assert len(first) <= 100
    assert first.startswith("rank 0   FF")
    assert first.rstrip().endswith("BBB")
    assert last.startswith("rank 15  ..B")
    assert last.rstrip().endswith("BB....")
    drawn = "".join(line[9:].ljust(91, ".") for line in lines[start + 1 : start + 17])
    simulation = summary("1f1b", 16, 200).published
    assert drawn.count(".") / len(drawn) == pytest.approx(simulation.bubble / simulation.makespan, abs=0.01)
    assert "--out FILE.svg draws all" in " ".join(" ".join(lines).split())


def test_the_comparison_fits_eighty_columns():
    console = screen(80)
    print_comparison(compare(4, 8, 2, Workload()), Workload(), console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert "interleaved 2 18.8% 18.8% 41.7% 5.5 5.5 112" in " ".join(" ".join(lines).split())
