"""One layer of the forward and of the backward loop on the clock, and its picture as SVG for documents and pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from jaxpar.compiler.program.costs.ops import KINDS
from jaxpar.compiler.program.hlo.records import Computation
from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.build import source_line
from jaxpar.config.spelling import spaced
from jaxpar.pages.axes import ticks
from jaxpar.pages.palette import SERIES, THEME, Color, series
from jaxpar.pages.render import render
from jaxpar.pages.units import percent, seconds
from jaxpar.trace.parts import Op, Repeat, Span, Trace

LOOP_SOURCE = "jaxpar/model/loop/"
"""Part of the names of the files that loop over layers."""


@dataclass(frozen=True)
class Box:
    """A span with what it is called."""

    span: Span
    kind: str
    """A kind of kernel (`costs.KINDS`), a collective, or `wait`."""
    label: str

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.span.end - self.span.start


@dataclass(frozen=True)
class LayerSchedule:
    """One iteration of a loop over layers."""

    title: str
    executions: float
    """Iterations in a step."""
    seconds: float
    boxes: tuple[Box, ...]
    """Kernels (an inner loop is one), transfers from the moment the link is free for them, and waiting."""

    @property
    def waited(self) -> float:
        """Seconds in which nothing is computed because a transfer is not complete."""
        return sum(box.seconds for box in self.boxes if box.kind == "wait")


def turn_words(layers: int) -> str:
    """The work of one iteration of the loop, where it has so many layers (`parallel.overlap.layer_unroll`)."""
    return "One layer" if layers == 1 else f"{layers} layers, one turn of the loop"


def layer_schedules(analysis: Analysis) -> list[LayerSchedule]:
    """The loops over layers, in order. Empty where XLA unrolled them: with fewer than three layers."""
    schedules = []
    for body in layer_loops(analysis):
        run = analysis.schedule.clock.run(analysis.schedule.traces[body.name])
        title = "Backward" if _is_backward(body) else "Forward"
        boxes = tuple(_box(analysis, body, span) for span in run.spans)
        schedules.append(LayerSchedule(title, analysis.counts.counts[body.name], run.seconds, boxes))
    return schedules


def layer_loops(analysis: Analysis) -> list[Computation]:
    """Bodies of the loops over layers, in the order of the program: of each direction, the one that takes longest (a
    model may have several kinds of layers)."""
    counts, schedule = analysis.counts.counts, analysis.schedule
    bodies = dict.fromkeys(
        op.computation_of("body")
        for name in counts
        for op in analysis.module.computations[name].ops
        if op.opcode == "while" and op.source is not None and LOOP_SOURCE in op.source.file
    )
    computations = [analysis.module.computations[name] for name in bodies if counts.get(name)]
    time = lambda body: schedule.clock.run(schedule.traces[body.name]).seconds * counts[body.name]
    ways = [[body for body in computations if _is_backward(body) is way] for way in (False, True)]
    longest = {max(way, key=time).name for way in ways if way}
    return [body for body in computations if body.name in longest]


def _is_backward(body: Computation) -> bool:
    return any("transpose(" in op.op_name for op in body.ops if op.opcode in ("custom-call", "fusion"))


def _kind(analysis: Analysis, trace: Trace, name: str) -> str:
    """The kind of kernels that takes most of the compute of a name."""
    parts = tuple(part for part in trace.parts if isinstance(part, Op | Repeat) and part.name == name)
    kinds = analysis.schedule.clock.run(Trace(name, parts)).seconds_by_kind
    return max(filter(KINDS.__contains__, kinds), key=kinds.__getitem__)


def _box(analysis: Analysis, body: Computation, span: Span) -> Box:
    source = source_line(body.by_name[span.name].source)
    if span.kind == "compute":
        kind = _kind(analysis, analysis.schedule.traces[body.name], span.name)
        return Box(span, kind, f"{span.name} ({kind}) {source}")
    movement = next(one for one in analysis.movements if one.transfer.start.name == span.name)
    collectives = "+".join(collective or movement.kind for collective in movement.collectives)
    label = f"{collectives} over {movement.axis}" if movement.axes else movement.kind
    label = f"{label} {source_line(movement.source)}"
    return Box(span, "wait", f"waits for {label}") if span.kind == "wait" else Box(span, collectives, label)


WIDTH, LEFT, RIGHT = 960, 84, 40
TOP, LANE, GAP = 34, 20, 4
"""Pixels: above the lanes of a layer, of a lane, and between two lanes."""
HEADING, LEGEND = 30, 40
TEMPLATE, STYLE = "compiler/report/layer_picture.svg", "compiler/report/layer_picture.css"
COLORS: dict[str, Color] = {
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


def picture_of(layers: Sequence[LayerSchedule], title: str) -> dict[str, object]:
    """The values of `TEMPLATE` and `STYLE`, without `alone`: whether the picture brings its style."""
    scale = _rounded(max(layer.seconds for layer in layers))
    used = {box.kind for layer in layers for box in layer.boxes}
    sent = sorted(used - COLORS.keys())
    others = [color for color in series(len(SERIES) + len(sent)) if color not in COLORS.values()]
    colors = COLORS | dict(zip(sent, others, strict=False))
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
