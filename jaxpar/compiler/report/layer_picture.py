"""One layer of a program over time, as SVG for documents and pages: kernels, transfers, and what waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import floor, log10
from typing import Any

from jaxpar.compiler.report.layer_schedule import Box, LayerSchedule
from jaxpar.config.spelling import spaced
from jaxpar.pages.axes import ticks
from jaxpar.pages.palette import SERIES, THEME, Color, series
from jaxpar.pages.render import render
from jaxpar.trace.parts import Span
from jaxpar.units import percent, seconds

WIDTH, LEFT, RIGHT = 960, 84, 40
TOP, LANE, GAP = 34, 20, 4
"""Pixels: above the lanes of a layer, of a lane, and between two lanes."""
HEADING, LEGEND = 30, 40
TEMPLATE, STYLE = "compiler/report/layer_picture.svg", "compiler/report/layer_picture.css"
KINDS: dict[str, Color] = {
    "matmul": SERIES[0],
    "attention": SERIES[2],
    "elementwise": ("#9aa5b1", "#6c7886"),
    "copy": ("#ccd3db", "#434d59"),
    "wait": THEME["red"],
}
_ROUND = (1, 2, 5, 10)
"""Lengths of the axis, times a power of ten, so that pictures of about the same time have one scale."""


def layers_picture(layers: Sequence[LayerSchedule], title: str) -> str:
    """A file with layers below each other, on one axis of time.

    Kernels of one kind that follow each other are one box; transfers that run at the same time have a lane each.
    """
    return str(render(TEMPLATE, alone=True, **picture_of(layers, title)))


def picture_of(layers: Sequence[LayerSchedule], title: str) -> dict[str, Any]:
    """The values of `TEMPLATE` and `STYLE`, without `alone`: whether the picture brings its style."""
    scale = _rounded(max(layer.seconds for layer in layers))
    used = {box.kind for layer in layers for box in layer.boxes}
    sent = sorted(used - KINDS.keys())
    others = [color for color in series(len(SERIES) + len(sent)) if color not in KINDS.values()]
    colors = KINDS | dict(zip(sent, others, strict=False))
    classes = {kind: f"c{place}" for place, kind in enumerate(colors)}
    y, parts = HEADING, []
    for layer in layers:
        parts.append(_layer(layer, scale, classes, y + 24))
        y += parts[-1]["height"]
    y += 26
    legend, x = [], LEFT
    for kind in (kind for kind in colors if kind in used):
        words = "waits for a transfer" if kind == "wait" else spaced(kind)
        legend.append((x, y + 14, classes[kind], words))
        x += 34 + 7 * len(words)
        if x > WIDTH - 150:
            x, y = LEFT, y + 24
    return dict(
        width=WIDTH, height=y + LEGEND, title=title, left=LEFT, right=WIDTH - RIGHT, layers=parts, legend=legend,
        lane=LANE, colors={classes[kind]: color for kind, color in colors.items()},
        note="Read from the compiled program, at the speeds of the hardware model; not measured.",
    )  # fmt: skip


def _layer(layer: LayerSchedule, scale: float, classes: dict[str, str], top: int) -> dict[str, Any]:
    """The template's picture of one layer, from `top` on."""
    x = lambda time: round(LEFT + (WIDTH - LEFT - RIGHT) * time / scale, 1)
    compute = [box for box in layer.boxes if box.span.kind == "compute"]
    waits = [box for box in layer.boxes if box.kind == "wait"]
    lanes = [("compute", [*_joined(compute), *waits])]
    transfers = _lanes(box for box in layer.boxes if box.span.kind == "message")
    lanes += [("" if place else "transfers", lane) for place, lane in enumerate(transfers)]
    first = top + 20
    drawn, names = [], []
    for place, (name, boxes) in enumerate(lanes):
        y = first + place * (LANE + GAP)
        names.append((y + 14, name))
        for box in boxes:
            start, end = x(box.span.start), x(box.span.end)
            text = f"{box.label.rstrip()}, {seconds(box.seconds)}"
            drawn.append((start, y, max(round(end - start, 1), 0.4), classes[box.kind], text))
    bottom = first + len(lanes) * (LANE + GAP)
    share = f", {percent(layer.waited, layer.seconds)} of it waiting" if layer.waited else ", nothing waits"
    return {
        "y": top + 10,
        "words": f"{layer.title}: {seconds(layer.seconds)}{share}; {layer.executions:,.0f} times a step",
        "names": names,
        "boxes": drawn,
        "bottom": bottom,
        "ticks": [(x(time), seconds(time)) for time in ticks(0, scale, 8)],
        "height": bottom - top + 30,
    }


def _joined(kernels: Iterable[Box]) -> Iterator[Box]:
    """Kernels of one kind that follow each other, as one box."""
    runs: list[list[Box]] = []
    for box in kernels:
        if runs and box.kind == runs[-1][0].kind and abs(box.span.start - runs[-1][-1].span.end) < 1e-9:
            runs[-1].append(box)
        else:
            runs.append([box])
    for run in runs:
        span = Span("", "compute", run[0].span.start, run[-1].span.end)
        yield Box(span, run[0].kind, f"{len(run)} kernels ({run[0].kind})") if len(run) > 1 else run[0]


def _lanes(transfers: Iterable[Box]) -> list[list[Box]]:
    """Transfers in as few lanes as keep those apart that run at the same time; at least one."""
    lanes: list[list[Box]] = [[]]
    for box in sorted(transfers, key=lambda box: box.span.start):
        free = next((lane for lane in lanes if not lane or lane[-1].span.end <= box.span.start + 1e-9), None)
        if free is None:
            lanes.append(free := [])
        free.append(box)
    return lanes


def _rounded(time: float) -> float:
    """The least round number from `time` on."""
    power = 10.0 ** floor(log10(time))
    return next(part * power for part in _ROUND if part * power >= time * (1 - 1e-9))
