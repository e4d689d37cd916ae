"""One layer of programs over time, as an SVG file for documents: kernels, transfers, and what waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import floor, log10
from typing import Any, NamedTuple

from jaxpar.compiler.report.layer_schedule import LayerSchedule, Span
from jaxpar.config.spelling import spaced
from jaxpar.pages.axes import ticks
from jaxpar.pages.palette import SERIES, THEME, Color, series
from jaxpar.pages.render import render
from jaxpar.units import percent, seconds

WIDTH, LEFT, RIGHT = 960, 84, 40
TOP, LANE, GAP = 34, 20, 4
"""Pixels: above the lanes of a layer, of a lane, and between two lanes."""
HEADING, LEGEND = 30, 40
KINDS: dict[str, Color] = {
    "matmul": SERIES[0],
    "attention": SERIES[2],
    "elementwise": ("#9aa5b1", "#6c7886"),
    "copy": ("#ccd3db", "#434d59"),
    "wait": THEME["red"],
}
_ROUND = (1, 2, 5, 10)
"""Lengths of the axis, times a power of ten, so that pictures of about the same time have one scale."""


class Program(NamedTuple):
    """What is drawn below one heading."""

    name: str
    layers: Sequence[LayerSchedule]


def layers_picture(programs: Sequence[Program], title: str) -> str:
    """The layers of each program below each other, on one axis of time.

    Times are predicted (`docs/inspect.md`). Kernels of one kind that follow each other are one box; transfers that run
    at the same time have a lane each.
    """
    layers = [layer for program in programs for layer in program.layers]
    scale = _rounded(max(layer.seconds for layer in layers))
    sent = sorted({span.kind for layer in layers for span in layer.transfers})
    others = [color for color in series(len(SERIES) + len(sent)) if color not in KINDS.values()]
    colors = KINDS | dict(zip(sent, others, strict=False))
    classes = {kind: f"c{place}" for place, kind in enumerate(colors)}
    y, groups = HEADING, []
    for program in programs:
        parts = []
        for layer in program.layers:
            part = _layer(layer, scale, classes, y + 24)
            parts.append(part)
            y += part["height"]
        groups.append((y - sum(part["height"] for part in parts) + 16, program.name, parts))
        y += 26
    used = {span.kind for layer in layers for span in [*layer.kernels, *layer.waits, *layer.transfers]}
    legend, x = [], LEFT
    for kind in (kind for kind in colors if kind in used):
        words = "waits for a transfer" if kind == "wait" else spaced(kind)
        legend.append((x, y + 14, classes[kind], words))
        x += 34 + 7 * len(words)
        if x > WIDTH - 150:
            x, y = LEFT, y + 24
    return str(
        render(
            "compiler/report/layer_picture.svg", width=WIDTH, height=y + LEGEND, title=title, left=LEFT,
            right=WIDTH - RIGHT, groups=groups, legend=legend, lane=LANE,
            colors={classes[kind]: color for kind, color in colors.items()},
            note="Read from the compiled program, at the speeds of the hardware model; not measured.",
        )
    )  # fmt: skip


def _layer(layer: LayerSchedule, scale: float, classes: dict[str, str], top: int) -> dict[str, Any]:
    """What the template draws of one layer, from `top` on."""
    x = lambda time: round(LEFT + (WIDTH - LEFT - RIGHT) * time / scale, 1)
    waited = sum(span.end - span.start for span in layer.waits)
    lanes = [("compute", list(_joined(layer.kernels)) + layer.waits)]
    lanes += [("transfers" if not place else "", lane) for place, lane in enumerate(_lanes(layer.transfers))]
    first = top + 20
    boxes, names = [], []
    for place, (name, spans) in enumerate(lanes):
        y = first + place * (LANE + GAP)
        names.append((y + 14, name))
        for span in spans:
            text = f"{span.label}, {seconds(span.end - span.start)} {span.source}".rstrip()
            boxes.append((x(span.start), y, max(round(x(span.end) - x(span.start), 1), 0.4), classes[span.kind], text))
    bottom = first + len(lanes) * (LANE + GAP)
    share = f", {percent(waited, layer.seconds)} of it waiting" if waited else ", nothing waits"
    return {
        "y": top + 10,
        "words": f"{layer.title}: {seconds(layer.seconds)}{share}; {layer.executions:,.0f} times a step",
        "names": names,
        "boxes": boxes,
        "bottom": bottom,
        "ticks": [(x(time), seconds(time)) for time in ticks(0, scale, 8)],
        "height": bottom - top + 30,
    }


def _joined(kernels: Iterable[Span]) -> Iterator[Span]:
    """Kernels of one kind that follow each other, as one span."""
    last: Span | None = None
    count = 0
    for span in kernels:
        if last is not None and span.kind == last.kind and abs(span.start - last.end) < 1e-9:
            count += 1
            last = Span(f"{count} kernels ({span.kind})", span.kind, last.start, span.end, "")
            continue
        if last is not None:
            yield last
        last, count = Span(f"{span.label} ({span.kind})", span.kind, span.start, span.end, span.source), 1
    if last is not None:
        yield last


def _lanes(transfers: Iterable[Span]) -> list[list[Span]]:
    """Transfers in as few lanes as keep those apart that run at the same time; at least one."""
    lanes: list[list[Span]] = [[]]
    for span in sorted(transfers, key=lambda span: span.start):
        free = next((lane for lane in lanes if not lane or lane[-1].end <= span.start + 1e-9), None)
        if free is None:
            lanes.append(free := [])
        free.append(span)
    return lanes


def _rounded(time: float) -> float:
    """The least round number from `time` on."""
    power = 10.0 ** floor(log10(time))
    return next(part * power for part in _ROUND if part * power >= time * (1 - 1e-9))
