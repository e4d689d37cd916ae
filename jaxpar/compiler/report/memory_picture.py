"""Memory by class over the program, as a picture of the page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.layer_schedule import layer_loops
from jaxpar.config.spelling import spaced
from jaxpar.pages.axes import byte_ticks
from jaxpar.pages.units import size

WIDTH, HEIGHT, LEFT, RIGHT = 1100, 320, 70, 16
CLASS_COLORS = {
    "optimizer": "#8e7cc3",
    "weights": "#4a86c8",
    "gradients": "#e0a030",
    "saved_activations": "#5aa469",
    "temporaries": "#8fb8c4",
}
"""From the bottom of the picture to the top: classes that live longest are lowest."""


@dataclass(frozen=True)
class MemoryTimeline:
    """Live bytes per class. The order is that of the program's text: a loop appears once."""

    places: tuple[int, ...]
    """Places in the order of ops."""
    length: int
    """The number of ops in the program."""
    classes: dict[str, tuple[int, ...]]
    """Bytes at each of `places`."""
    peak: int
    """Place of the peak, one of `places`."""
    loops: tuple[tuple[str, int, int], ...]
    """Name, first and last place of the loops over layers."""
    ops: tuple[str, ...]
    """Name of the op at each of `places`."""

    @property
    def totals(self) -> list[int]:
        """Bytes of all classes at each of `places`."""
        return [sum(counts) for counts in zip(*self.classes.values(), strict=True)]


def memory_timeline(analysis: Analysis, columns: int = 300) -> MemoryTimeline:
    """Sample the program at about `columns` places, the peak among them."""
    order, (peak, _) = analysis.buffers.order, analysis.peak
    places = sorted({peak, *np.linspace(0, len(order) - 1, min(columns, len(order))).astype(int).tolist()})
    each = [analysis.classes.bytes_at(position) for position in places]
    loops = []
    for name, body in zip(("forward layers", "backward layers"), layer_loops(analysis), strict=False):
        if inside := [position for position, op in enumerate(order) if op in body.by_name]:
            loops.append((name, inside[0], inside[-1]))
    classes = {name: tuple(one[name] for one in each) for name in CLASS_COLORS}
    return MemoryTimeline(
        tuple(places), len(order), classes, peak, tuple(loops), tuple(order[position] for position in places)
    )


def memory_picture(timeline: MemoryTimeline, capacity: int) -> dict[str, object]:
    """Values of the template: stacked areas of the classes over the order of the program, the peak, and what fits."""
    top, bottom = 34, HEIGHT - 26
    most = max(*timeline.totals, 1)
    highest = 1.08 * (max(most, capacity) if capacity < 2.5 * most else most)
    x = lambda position: round(LEFT + (WIDTH - LEFT - RIGHT) * position / max(timeline.length - 1, 1), 1)
    y = lambda count: round(top + (bottom - top) * (1 - count / highest), 1)
    areas, below = [], [0] * len(timeline.places)
    for name, color in CLASS_COLORS.items():
        above = [low + count for low, count in zip(below, timeline.classes[name], strict=True)]
        upper, lower = (
            [f"{x(p)},{y(v)}" for p, v in zip(timeline.places, edge, strict=True)] for edge in (above, below)
        )
        areas.append((color, " ".join(upper + lower[::-1])))
        below = above
    return dict(
        width=WIDTH, height=HEIGHT, left=LEFT, right=WIDTH - RIGHT, top=top, bottom=bottom, areas=areas,
        loops=[(x(a), round(x(b) - x(a), 1), (x(a) + x(b)) / 2, name) for name, a, b in timeline.loops],
        ticks=[(y(mark), size(mark).replace(".0 ", " ")) for mark in byte_ticks(highest, 6)],
        capacity=y(capacity) if capacity < highest else None, fits=f"what fits: {size(capacity)}",
        peak=x(timeline.peak), highest=y(most), peak_text=f"peak {size(most)}",
        colors={spaced(name): color for name, color in CLASS_COLORS.items()},
    )  # fmt: skip


def pointer_data(timeline: MemoryTimeline) -> dict[str, object]:
    """Values that the page's script needs to say what is under the pointer."""
    shown = {name: getattr(timeline, name) for name in ("length", "places", "ops", "classes")}
    return {"width": WIDTH, "left": LEFT, "right": RIGHT, "peak": max(timeline.totals, default=0), **shown}
