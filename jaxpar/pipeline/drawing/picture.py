"""A schedule in time as an SVG: one file that needs no network and follows light and dark mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import floor, log10

from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.drawing.colors import color, hexadecimal, ink
from jaxpar.pipeline.drawing.words import kind_name, number, title
from jaxpar.pipeline.timing.per_chunk import Number
from jaxpar.pipeline.timing.simulate import Simulation
from jaxpar.pipeline.timing.timelines import Event
from jaxpar.units import percent

LEFT, RIGHT, TOP, BOTTOM = 72, 92, 82, 84
"""Pixels around the boxes: names of ranks, chunks in flight, title, and axis with legend."""
NARROWEST, WIDEST = 640, 4000
"""Pixels for the boxes from left to right."""
BOX = 20
"""Pixels for the shortest action, as long as the picture does not get wider than `WIDEST`."""
DIGIT = 6.6
"""Pixels of a digit inside a box."""

_STYLE = """text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: INK; }
.title { font-size: 17px; font-weight: 600; }
.dim { fill: DIM; }
.n { font-size: 11px; text-anchor: middle; font-variant-numeric: tabular-nums; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.paper { fill: PAPER; } .lane { fill: LANE; } .hatch { stroke: HATCH; stroke-width: 1.6; }
.grid { stroke: GRID; } .axis { stroke: DIM; } .ideal { stroke: RED; stroke-dasharray: 4 3; } .red { fill: RED; }
.box { stroke: PAPER; stroke-width: 1; }
"""
_LIGHT = dict(INK="#1d2530", DIM="#5d6775", PAPER="#ffffff", LANE="#f3f5f8", HATCH="#d0d8e1", GRID="#00000018")
_DARK = dict(INK="#e3e7ec", DIM="#98a3b1", PAPER="#14181e", LANE="#1b2129", HATCH="#2d3641", GRID="#ffffff20")


def picture(simulation: Simulation) -> str:
    """`simulation` as SVG: a row for each rank, a box for each action with its microbatch, the bubble hatched."""
    return _Picture(simulation).draw()


@dataclass(frozen=True)
class _Picture:
    simulation: Simulation

    @property
    def ranks(self) -> int:
        return self.simulation.schedule.ranks

    @property
    def laps(self) -> int:
        return self.simulation.schedule.virtual_stages

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return self.simulation.schedule.kinds

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
        return 34 if self.ranks <= 16 else 24

    @property
    def right(self) -> float:
        return LEFT + float(self.simulation.makespan) * self.scale

    @property
    def bottom(self) -> int:
        return TOP + self.row * self.ranks

    def x(self, time: Number) -> float:
        """Pixels from the left."""
        return round(LEFT + float(time) * self.scale, 2)

    def draw(self) -> str:
        width, height = round(max(self.right, LEFT + NARROWEST)) + RIGHT, self.bottom + BOTTOM
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(title(self.simulation.schedule))}">',
            f"<style>{self._style()}</style>",
            '<pattern id="bubble" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            '<rect class="lane" width="7" height="7"/><path class="hatch" d="M0 0v7"/></pattern>',
            f'<rect class="paper" width="{width}" height="{height}"/>',
            *self._head(width),
            *self._lanes(),
            *self._axis(),
            *(self._box(event) for event in self.simulation.timeline if event.end > event.start),
            *self._ideal(),
            *self._legend(),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _style(self) -> str:
        light, dark = (self._themed(theme, dark=theme is _DARK) for theme in (_LIGHT, _DARK))
        return f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"

    def _themed(self, theme: dict[str, str], *, dark: bool) -> str:
        style = _STYLE
        for name, value in (theme | {"RED": "#ff7b72" if dark else "#c93636"}).items():
            style = style.replace(name, value)
        for kind in self.kinds:
            for lap in range(self.laps):
                fill = color(kind, lap, self.laps, dark=dark)
                name = f"{kind.value}{lap}"
                style += f".{name} path {{ fill: {hexadecimal(fill)}; }}\n"
                style += f".{name} text {{ fill: {hexadecimal(ink(fill))}; }}\n"
        return style

    def _head(self, width: int) -> Iterator[str]:
        simulation = self.simulation
        said = (
            f"{simulation.mode}: {number(simulation.makespan)} units of time, of which {number(simulation.bubble)} "
            f"({percent(simulation.bubble_fraction)} of the ideal {number(simulation.ideal)}) are bubble"
        )
        yield _text(LEFT, 28, title(simulation.schedule), "title")
        yield _text(LEFT, 48, said, "dim")
        yield _text(width - 14, TOP - 8, "in flight", "dim end")
        for rank, peak in enumerate(simulation.peak_in_flight):
            yield _text(width - 14, self._middle(rank), str(peak), "end")

    def _middle(self, rank: int) -> float:
        """The base line of text in the middle of a row."""
        return TOP + self.row * (rank + 0.5) + 2

    def _lanes(self) -> Iterator[str]:
        length = round(self.right - LEFT, 2)
        for rank in range(self.ranks):
            yield _text(LEFT - 10, self._middle(rank), f"rank {rank}", "end")
            top = TOP + self.row * rank
            yield f'<rect x="{LEFT}" y="{top}" width="{length}" height="{self.row - 4}" fill="url(#bubble)"/>'

    def _axis(self) -> Iterator[str]:
        y = self.bottom + 4
        yield f'<path class="axis" d="M{LEFT} {y}H{self.right:.2f}"/>'
        makespan = float(self.simulation.makespan)
        step = _round_step(makespan, most=max(2, int((self.right - LEFT) / 60)))
        for i in range(int(makespan / step + 1e-9) + 1):
            x = self.x(i * step)
            yield f'<path class="grid" d="M{x} {TOP - 4}V{y}"/>' + _text(x, y + 16, number(i * step), "dim middle")

    def _box(self, event: Event) -> str:
        """A box with its microbatch, if it fits, and a tooltip."""
        action = event.action
        left, right = self.x(event.start), self.x(event.end)
        top, height = TOP + self.row * event.rank, self.row - 4
        lap = self.simulation.schedule.chunks_of[event.rank].index(action.chunk)
        said = f"{action}: {kind_name(action.kind, self.simulation.schedule)} of microbatch {action.microbatch} "
        said += f"through chunk {action.chunk}, {number(event.start)} to {number(event.end)}"
        path = f'<path class="box" d="M{left:g} {top}H{right:g}v{height}H{left:g}z"><title>{said}</title></path>'
        label = str(action.microbatch)
        if right - left < DIGIT * len(label) + 3:
            return f'<g class="{action.kind.value}{lap}">{path}</g>'
        middle = round((left + right) / 2, 1)
        text = f'<text class="n" x="{middle:g}" y="{self._middle(event.rank):g}">{label}</text>'
        return f'<g class="{action.kind.value}{lap}">{path}{text}</g>'

    def _ideal(self) -> Iterator[str]:
        simulation = self.simulation
        if simulation.bubble <= 0:
            return
        x = self.x(simulation.ideal)
        yield f'<path class="ideal" d="M{x} {TOP - 12}V{self.bottom + 4}"/>'
        yield _text(x - 4, TOP - 8, "ideal", "red end")

    def _legend(self) -> Iterator[str]:
        """Swatches under the axis: a shade for each chunk of a rank, as many as fit."""
        x, y = LEFT, self.bottom + 44
        shown = range(self.laps) if self.laps <= 8 else (0, self.laps - 1)
        for kind in self.kinds:
            for lap in shown:
                yield f'<g class="{kind.value}{lap}"><path class="box" d="M{x} {y}h18v18h-18z"/></g>'
                x += 18
            said = f"{kind.value}  {kind_name(kind, self.simulation.schedule)}"
            yield _text(x + 7, y + 13, said)
            x += 7 + round(6.9 * len(said)) + 16
        yield f'<rect x="{x}" y="{y}" width="18" height="18" fill="url(#bubble)"/>' + _text(x + 25, y + 13, "bubble")
        notes = "numbers are microbatches"
        if self.laps > 1:
            notes += "; shades are a rank's chunks, first to last"
        yield _text(LEFT, y + 34, notes, "dim")


def _round_step(length: float, most: int) -> float:
    """1, 2 or 5 times a power of ten, so that at most `most` steps make `length`."""
    if length <= 0:
        return 1
    power = 10 ** floor(log10(length / most))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if length <= most * power * factor)


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}">{escape(text)}</text>'
