"""A schedule in time as an SVG: a file that needs no network and follows light and dark mode, or a part of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup

from jaxpar.pages.axes import ticks
from jaxpar.pages.render import render
from jaxpar.pages.units import percent
from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.drawing.colors import color, hexadecimal, ink
from jaxpar.pipeline.drawing.words import kind_name, number, title
from jaxpar.pipeline.timing.per_chunk import Number
from jaxpar.pipeline.timing.simulate import Simulation
from jaxpar.pipeline.timing.timelines import Event

LEFT, RIGHT, TOP, BOTTOM = 72, 92, 82, 84
"""Pixels around the boxes: names of ranks, chunks in flight, title, and axis with legend."""
NARROWEST, WIDEST = 640, 4000
"""Pixels for the boxes from left to right."""
BOX = 20
"""Pixels for the shortest action, as long as the picture does not get wider than `WIDEST`."""
DIGIT = 6.6
"""Pixels of a digit inside a box."""


def picture(simulation: Simulation) -> str:
    """`simulation` as an SVG file: a row for each rank, a box for each action with its microbatch, the bubble hatched.

    Times are shown without a unit.
    """
    laps = simulation.schedule.virtual_stages
    return str(_Picture(simulation, number, " units of time").drawn("bubble", style([laps])))


def inline_picture(simulation: Simulation, name: str, unit: Callable[[float], str]) -> Markup:
    """Draw the picture for a page that includes `style`.

    Args:
        simulation: the schedule in time.
        name: of the hatching, one for each picture of a page.
        unit: a time in words.
    """
    return _Picture(simulation, lambda time: unit(float(time)), "").drawn(name, "")


def style(laps: Iterable[int]) -> Markup:
    """The style sheet of pictures of schedules with these numbers of chunks on a rank."""
    papers = {
        _kind(kind, lap, count): [color(kind, lap, count, dark=dark) for dark in (False, True)]
        for count in sorted(set(laps))
        for kind in Kind
        for lap in range(count)
    }
    fills = {
        name: [(hexadecimal(paper), hexadecimal(ink(paper))) for paper in papers_of_kind]
        for name, papers_of_kind in papers.items()
    }
    return render("pipeline/drawing/picture.css", fills=fills)


def _kind(kind: Kind, lap: int, laps: int) -> str:
    """The class of the boxes of a kind on chunk number `lap` of a rank."""
    return f"{kind.value}{lap}-{laps}"


@dataclass(frozen=True)
class _Picture:
    simulation: Simulation
    unit: Callable[[Number], str]
    units: str

    @property
    def laps(self) -> int:
        return self.simulation.schedule.virtual_stages

    @cached_property
    def scale(self) -> float:
        """Pixels for a unit of time."""
        span = float(self.simulation.makespan) or 1.0
        lengths = [float(event.end - event.start) for event in self.simulation.timeline]
        shortest = min((length for length in lengths if length > 0), default=span)
        return min(max(NARROWEST, BOX * span / shortest), WIDEST) / span

    @property
    def row(self) -> int:
        """Pixels from one rank to the next."""
        return 34 if self.simulation.schedule.ranks <= 16 else 24

    @property
    def right(self) -> float:
        return self.x(self.simulation.makespan)

    def x(self, time: Number) -> float:
        """Pixels from the left."""
        return round(LEFT + float(time) * self.scale, 2)

    def middle(self, rank: int) -> float:
        """The base line of text in the middle of a row."""
        return TOP + self.row * (rank + 0.5) + 2

    def drawn(self, bubble: str, style: str) -> Markup:
        simulation, schedule = self.simulation, self.simulation.schedule
        bottom, makespan = TOP + self.row * schedule.ranks, float(simulation.makespan)
        legend, idle = self._legend()
        return render(
            "pipeline/drawing/picture.svg",
            width=round(max(self.right, LEFT + NARROWEST)) + RIGHT,
            height=bottom + BOTTOM,
            left=LEFT,
            right=self.right,
            top=TOP,
            bottom=bottom,
            row=self.row - 4,
            title=title(schedule),
            summary_text=f"{simulation.mode}: {self.unit(simulation.makespan)}{self.units}, of which "
            f"{self.unit(simulation.bubble)} ({percent(simulation.bubble_fraction)} of the ideal "
            f"{self.unit(simulation.ideal)}) are bubble",
            ranks=[
                (self.middle(rank), f"rank {rank}", peak, TOP + self.row * rank)
                for rank, peak in enumerate(simulation.peak_in_flight)
            ],
            ticks=[
                (self.x(time), self.unit(time)) for time in ticks(0, makespan, max(2, int((self.right - LEFT) / 60)))
            ],
            boxes=map(self._box, (event for event in simulation.timeline if event.end > event.start)),
            ideal=self.x(simulation.ideal) if simulation.bubble > 0 else None,
            legend=legend,
            idle=idle,
            notes="numbers are microbatches" + ("; shades are a rank's chunks, first to last" if self.laps > 1 else ""),
            bubble=bubble,
            style=style,
        )

    def _box(self, event: Event) -> tuple[str, float, float, int, str, float, float, str]:
        """A box, its tooltip, and its microbatch if it fits."""
        action, schedule = event.action, self.simulation.schedule
        left, right = self.x(event.start), self.x(event.end)
        lap = schedule.chunks_of[event.rank].index(action.chunk)
        description = f"{action}: {kind_name(action.kind, schedule)} of microbatch {action.microbatch} "
        description += f"through chunk {action.chunk}, {self.unit(event.start)} to {self.unit(event.end)}"
        label = str(action.microbatch)
        return (
            _kind(action.kind, lap, self.laps), left, right, TOP + self.row * event.rank, description,
            round((left + right) / 2, 1), self.middle(event.rank),
            label if right - left >= DIGIT * len(label) + 3 else "",
        )  # fmt: skip

    def _legend(self) -> tuple[list[tuple[list[tuple[str, int]], int, str]], int]:
        """Swatches and name of each kind, with a shade for each chunk of a rank that fits, and their right end."""
        x, entries = LEFT, []
        shown = range(self.laps) if self.laps <= 8 else (0, self.laps - 1)
        for kind in self.simulation.schedule.kinds:
            swatches = [(_kind(kind, lap, self.laps), x + 18 * index) for index, lap in enumerate(shown)]
            name = f"{kind.value}  {kind_name(kind, self.simulation.schedule)}"
            x += 18 * len(shown) + 7
            entries.append((swatches, x, name))
            x += round(6.9 * len(name)) + 16
        return entries, x
