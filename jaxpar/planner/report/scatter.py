"""The picture of all layouts that a search has timed, in pixels: time against memory, with the Pareto frontier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxpar.pages.axes import ticks
from jaxpar.pages.labels import Box, place_labels
from jaxpar.planner.report import words
from jaxpar.planner.search.candidate import Candidate
from jaxpar.units import seconds

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000, 460, 62, 14, 26, 44
GIB = 2**30
SLOWEST = 3.0
"""Times the best: slower layouts are not drawn."""
NARROWEST = 1.25
"""Times the best: the least that the time axis shows."""
LABELED = 8
"""Most plans with a label."""
LETTER, LINE = 6.4, 15
"""Pixels of a letter of a label, on average, and of its height."""
NEARBY = 220
"""Pixels around a point within which its label avoids other points."""


def scatter(layouts: Sequence[Candidate], names: Sequence[str], plans: int, usable: int) -> dict[str, Any]:
    """What `scatter.svg` shows.

    Args:
        layouts: the plans, best first, then others.
        names: a sentence for each, shown under the pointer.
        plans: how many of them are plans.
        usable: bytes of a device that may be planned for.
    """
    best = min(one.seconds for one in layouts)
    shown = [i for i, one in enumerate(layouts) if one.seconds <= SLOWEST * best]
    low, high = 0.98 * best, 1.02 * max(NARROWEST * best, *(layouts[i].seconds for i in shown))
    sizes = [layouts[i].memory.device / GIB for i in shown]
    least, most = 0.9 * min(sizes), 1.06 * max(usable / GIB, *sizes)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x = lambda time: round(LEFT + (right - LEFT) * (time - low) / (high - low), 1)
    y = lambda size: round(bottom - (bottom - TOP) * (size / GIB - least) / (most - least), 1)
    places = {i: (x(layouts[i].seconds), y(layouts[i].memory.device)) for i in shown}
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": right,
        "top": TOP,
        "bottom": bottom,
        "x_ticks": [(x(time), seconds(time)) for time in ticks(low, high, 8)],
        "y_ticks": [(y(GIB * size), f"{size:g}") for size in ticks(least, most, 6)],
        "usable": y(usable),
        "frontier": _steps([places[i] for i in _frontier(layouts, shown)]),
        "points": [(*places[i], i, i < plans, names[i]) for i in reversed(shown)],  # plans on top
        "labels": _labels(layouts, [i for i in shown if i < plans][:LABELED], places, Box(LEFT, TOP, right, bottom)),
    }


def _frontier(layouts: Sequence[Candidate], shown: Sequence[int]) -> list[int]:
    """The layouts for which no other is as fast and as small, by rising time."""
    found: list[int] = []
    for i in sorted(shown, key=lambda i: (layouts[i].seconds, layouts[i].memory.device)):
        if not found or layouts[i].memory.device < layouts[found[-1]].memory.device:
            found.append(i)
    return found


def _steps(places: Sequence[tuple[float, float]]) -> str:
    """The line under which no layout lies."""
    (x, y), *others = places
    return f"M{x} {y}" + "".join(f"H{x}V{y}" for x, y in others)


def _labels(
    layouts: Sequence[Candidate], plans: Sequence[int], places: dict[int, tuple[float, float]], area: Box
) -> list[dict[str, Any]]:
    """The mesh of each plan beside its point, and a line from one to the other."""
    texts = [f"{i + 1}: {words.axes(layouts[i].layout)}" for i in plans]
    near = lambda place: any(abs(place[0] - places[i][0]) + abs(place[1] - places[i][1]) < NEARBY for i in plans)
    covered = [Box(x - 5, y - 5, x + 5, y + 5) for x, y in set(places.values()) if near((x, y))]
    boxes = place_labels([places[i] for i in plans], [(LETTER * len(t) + 6, LINE) for t in texts], area, covered)
    return [
        {"text": text, "x": box.x0 + 3, "y": box.y1 - 4, "from": places[i], "to": _nearest(box, places[i]), "box": box}
        for i, text, box in zip(plans, texts, boxes, strict=True)
        if box is not None
    ]


def _nearest(box: Box, point: tuple[float, float]) -> tuple[float, float]:
    """The point of a box that is nearest to another."""
    return min(max(point[0], box.x0), box.x1), min(max(point[1], box.y0), box.y1)
