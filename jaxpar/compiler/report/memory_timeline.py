"""Memory by class over the program, at as many places as a picture has columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.layer_schedule import layer_loops


@dataclass(frozen=True)
class MemoryTimeline:
    """Live bytes per class. The order is that of the program's text: a loop appears once."""

    places: tuple[int, ...]
    """Places in the order of ops."""
    length: int
    """Ops in all."""
    classes: dict[str, tuple[int, ...]]
    """Bytes at each of `places`."""
    peak: int
    """Place of the peak, one of `places`."""
    loops: tuple[tuple[str, int, int], ...]
    """Name, first and last place of the loops over layers."""
    ops: tuple[str, ...]
    """Name of the op at each of `places`."""


def memory_timeline(analysis: Analysis, columns: int = 300) -> MemoryTimeline:
    """Sample the program at about `columns` places, the peak among them."""
    order, (peak, _) = analysis.buffers.order, analysis.peak
    places = sorted({peak, *np.linspace(0, len(order) - 1, min(columns, len(order))).astype(int).tolist()})
    found = [analysis.classes.at(place) for place in places]
    classes = {name: tuple(each[name] for each in found) for name in found[0]}
    ops = tuple(order[place] for place in places)
    return MemoryTimeline(tuple(places), len(order), classes, peak, _loops(analysis), ops)


def _loops(analysis: Analysis) -> tuple[tuple[str, int, int], ...]:
    spans = []
    for name, body in zip(("forward layers", "backward layers"), layer_loops(analysis), strict=False):
        found = [place for place, op in enumerate(analysis.buffers.order) if op in body.by_name]
        if found:
            spans.append((name, found[0], found[-1]))
    return tuple(spans)
