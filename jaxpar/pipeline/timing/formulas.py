"""Closed formulas for bubbles, each with its source, to compare simulations with.

All hold for chunks that take the same time, without head and transfers. p is ranks, m microbatches, v virtual stages;
F, B and W are the times of one chunk, B without W where the backward is split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.table import Schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.per_chunk import Number


@dataclass(frozen=True)
class Bubble:
    """A bubble by formula: time on top of the ideal, in the unit of the durations."""

    time: Number
    exact: bool
    """Whether the simulation must be equal to it; else it must not be above."""
    source: str


type Formula = Callable[[Schedule, Number, Number, Number], Bubble | None]
"""(schedule, F, B, W) -> the bubble; None where the formula does not hold."""


def published_bubble(schedule: Schedule, durations: Durations) -> Bubble | None:
    """The bubble that the schedule's paper states, for `async`; None where the formula does not hold."""
    formula = _PUBLISHED.get(schedule.name)
    times = [durations.forward, durations.backward, durations.weight]
    if formula is None or durations.head or durations.transfer or any(isinstance(t, Sequence) for t in times):
        return None
    durations.check(schedule)
    forward, backward, weight = (durations.kind_duration(kind, 0, schedule) for kind in Kind)
    return formula(schedule, forward, backward, weight)


def _one_f_one_b(schedule: Schedule, f: Number, b: Number, w: Number) -> Bubble:
    return Bubble(
        (schedule.ranks - 1) * (f + b),
        True,
        "(p-1)(F+B) of a chunk: GPipe, 1F1B (arXiv:2104.04473, 2.2.1), interleaved (2.2.2), breadth-first (2211.05953)",
    )


def _zb_h1(schedule: Schedule, f: Number, b: Number, w: Number) -> Bubble | None:
    if schedule.microbatches < schedule.ranks:
        return None
    return Bubble(
        (schedule.ranks - 1) * (f + b - min(f, b, w)),
        True,
        "(p-1)(F+B-W) where W is not the longest (arXiv:2401.10241, section 2); a longer W fills no more than F or B",
    )


def _zb_uniform(schedule: Schedule, f: Number, b: Number, w: Number) -> Bubble:
    return Bubble((schedule.ranks - 1) * (f + b), False, "(p-1)(F+B) of a chunk, as in uniform ticks")


def _zb_v(schedule: Schedule, f: Number, b: Number, w: Number) -> Bubble | None:
    if not f == b == w or schedule.microbatches < 2 * schedule.ranks - 1:
        return None
    return Bubble(
        (schedule.ranks - 1) * f,
        True,
        "no rank waits between its actions where F = B = W (ZB-V, arXiv:2401.10241); rank r starts r F later",
    )


def _dualpipe_v(schedule: Schedule, f: Number, b: Number, w: Number) -> Bubble | None:
    if w > min(f, b) or f > b:
        return None
    return Bubble(
        (schedule.ranks - 1) * ((f + b + w) + (b + w) - 3 * w),
        False,
        "(p-1)(F&B+B-3W) of a chunk, B with W (DeepSeek's DualPipe), where F&B is one action that takes F+B; as two "
        "actions, the first lets others go on",
    )


def _v_half(schedule: Schedule, f: Number, b: Number, w: Number) -> Bubble | None:
    if not f == b == w or schedule.microbatches < schedule.ranks:
        return None
    p = schedule.ranks
    return Bubble(
        (3 * (p - 1) - (p % 2 if p > 1 else 0)) * f,
        True,
        "half of 1F1B's (p-1)(F+B+W) over two chunks where F = B = W (arXiv:2405.15362); one F less for odd p",
    )


_PUBLISHED: dict[str, Formula] = {
    "one-stage": _one_f_one_b,
    "gpipe": _one_f_one_b,
    "1f1b": _one_f_one_b,
    "interleaved": _one_f_one_b,
    "breadth-first": _one_f_one_b,
    "zb-uniform": _zb_uniform,
    "zb-h1": _zb_h1,
    "zb-v": _zb_v,
    "dualpipe-v": _dualpipe_v,
    "v-half": _v_half,
}
