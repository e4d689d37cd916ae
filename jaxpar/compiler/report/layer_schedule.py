"""One layer of the forward and of the backward loop on the clock."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.compiler.program.costs.ops import KINDS
from jaxpar.compiler.program.hlo.records import Computation
from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.build import where
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
        """How long it takes."""
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
    found = []
    for body in layer_loops(analysis):
        run = analysis.schedule.clock.run(analysis.schedule.traces[body.name])
        title = "Backward" if _is_backward(body) else "Forward"
        boxes = tuple(_box(analysis, body, span) for span in run.spans)
        found.append(LayerSchedule(title, analysis.counts.counts[body.name], run.seconds, boxes))
    return found


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
    kinds = analysis.schedule.clock.run(Trace(name, parts)).by_kind
    return max(filter(KINDS.__contains__, kinds), key=kinds.__getitem__)


def _box(analysis: Analysis, body: Computation, span: Span) -> Box:
    source = where(body.by_name[span.name].source)
    if span.kind == "compute":
        kind = _kind(analysis, analysis.schedule.traces[body.name], span.name)
        return Box(span, kind, f"{span.name} ({kind}) {source}")
    movement = next(one for one in analysis.movements if one.transfer.start.name == span.name)
    collectives = "+".join(collective or movement.kind for collective in movement.collectives)
    label = f"{collectives} over {movement.axis}" if movement.axes else movement.kind
    label = f"{label} {where(movement.source)}"
    return Box(span, "wait", f"waits for {label}") if span.kind == "wait" else Box(span, collectives, label)
