"""One layer of the forward and of the backward loop: the predicted times at which kernels and transfers run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from jaxpar.compiler.program.hlo.records import Computation, Op
from jaxpar.compiler.program.loops import controlled
from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.build import axis_of, where

LOOP_SOURCE = "jaxpar/model/loop/"
"""Part of the names of the files that loop over layers."""


@dataclass(frozen=True)
class Span:
    """Something that takes time."""

    label: str
    kind: str
    """A kind of kernel (`costs.KINDS`), a collective, or `wait`."""
    start: float
    """Seconds from the start of the layer."""
    end: float
    source: str


@dataclass
class LayerSchedule:
    """One iteration of a loop over layers, with predicted times."""

    title: str
    executions: float
    """Iterations in a step."""
    seconds: float = 0.0
    kernels: list[Span] = field(default_factory=list)
    """Kernels in order; an inner loop is one span."""
    transfers: list[Span] = field(default_factory=list)
    """Transfers, from the moment the link is free for them until they are complete."""
    waits: list[Span] = field(default_factory=list)
    """When nothing is computed because a transfer is not complete."""


def turn_words(layers: int) -> str:
    """The work of one iteration of the loop, where it has so many layers (`parallel.overlap.layer_unroll`)."""
    return "One layer" if layers == 1 else f"{layers} layers, one turn of the loop"


def layer_schedules(analysis: Analysis) -> list[LayerSchedule]:
    """The loops over layers, in order. Empty where XLA unrolled them: with fewer than three layers."""
    return [_walk(analysis, computation) for computation in layer_loops(analysis)]


def layer_loops(analysis: Analysis) -> list[Computation]:
    """Bodies of the loops over layers, in the order of the program: of each direction, the one that takes longest (a
    model may have several kinds of layers)."""
    bodies = dict.fromkeys(
        op.computation_of("body")
        for name in analysis.counts.counts
        for op in analysis.module.computations[name].ops
        if op.opcode == "while" and op.source is not None and LOOP_SOURCE in op.source.file
    )
    computations = [analysis.module.computations[name] for name in bodies if analysis.counts.counts.get(name)]
    time = lambda body: _total(analysis, body.name) * analysis.counts.counts[body.name]
    ways = [[body for body in computations if _is_backward(body) is way] for way in (False, True)]
    longest = {max(way, key=time).name for way in ways if way}
    return [body for body in computations if body.name in longest]


def _is_backward(body: Computation) -> bool:
    return any("transpose(" in op.op_name for op in body.ops if op.opcode in ("custom-call", "fusion"))


def _inside(analysis: Analysis, name: str) -> set[str]:
    """Computations that a computation runs, and those that they run."""
    found: set[str] = set()
    for op in analysis.module.computations[name].ops:
        for called, _ in controlled(analysis.module, op):
            found |= {called.name} | _inside(analysis, called.name)
    return found


def _total(analysis: Analysis, name: str) -> float:
    """Seconds of one execution of a computation: compute, and what is exposed."""
    total = sum(o.exposed for o in analysis.schedule.overlaps if o.movement.transfer.start.computation == name)
    for op in analysis.module.computations[name].ops:
        total += _seconds(analysis, op)
    return total


def _seconds(analysis: Analysis, op: Op) -> float:
    """Seconds of one kernel, or of what an op runs op by op."""
    own = analysis.kernel_seconds.get(op.name, 0.0)
    return own + sum(count * _total(analysis, called.name) for called, count in controlled(analysis.module, op))


def _longest_kind(analysis: Analysis, op: Op) -> str:
    """The kind of kernel that takes most of the time of a loop."""
    inside = {called.name for called, _ in controlled(analysis.module, op)}
    inside |= {name for called in inside for name in _inside(analysis, called)}
    times: dict[str, float] = {}
    for cost in analysis.costs:
        if cost.op.computation in inside:
            times[cost.kind] = times.get(cost.kind, 0.0) + analysis.kernel_seconds[cost.op.name] * cost.executions
    return max(times, key=lambda kind: times[kind])


def _walk(analysis: Analysis, computation: Computation) -> LayerSchedule:
    made = LayerSchedule(
        "Backward" if _is_backward(computation) else "Forward", analysis.counts.counts[computation.name]
    )
    starts = {m.transfer.start.name: m for m in analysis.movements}
    pending: dict[str, Span] = {}
    now = 0.0
    free: dict[str, float] = defaultdict(float)
    for op in computation.ops:
        took = _seconds(analysis, op)
        if took:
            kinds = analysis.kinds
            kind = kinds[op.name] if op.name in kinds else _longest_kind(analysis, op)
            made.kernels.append(Span(op.name, kind, now, now + took, where(op.source)))
            now += took
        if op.name in starts:
            movement = starts[op.name]
            channel = analysis.channel(movement)
            begin = max(now, free[channel])
            free[channel] = begin + analysis.timer.transfer(movement)
            collectives = "+".join(collective or movement.kind for collective in movement.collectives)
            label = f"{collectives} over {axis_of(movement)}" if movement.axes else movement.kind
            span = Span(label, collectives, begin, free[channel], where(movement.source))
            made.transfers.append(span)
            pending[movement.transfer.done.name] = span
        if op.name in pending:
            span = pending.pop(op.name)
            if span.end > now:
                made.waits.append(Span(f"waits for {span.label}", "wait", now, span.end, span.source))
                now = span.end
    made.seconds = now
    return made
