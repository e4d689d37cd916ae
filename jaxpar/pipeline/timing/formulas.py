"""Closed formulas for bubbles and chunks in flight, each with its source, to check simulations against.

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
    return _apply(_PUBLISHED, schedule, durations)


def lockstep_bubble(schedule: Schedule, durations: Durations) -> Bubble | None:
    """The bubble in uniform ticks; None where there is no formula."""
    return _apply(_LOCKSTEP, schedule, durations)


def published_in_flight(schedule: Schedule) -> tuple[int, ...] | None:
    """For each rank, the most chunks in flight in the published order; None where there is no formula.

    1F1B: p - r (PipeDream-Flush). Interleaved: 2 (p - 1 - r) + (v - 1) p + 1 (Megatron-LM). ZB-H1: p on every rank,
    1F1B's on rank 0. ZB-V: 2 p on every rank, in a full pipeline. DualPipeV: 2 p + 1. V-Half: 2 floor((p + 2) / 2).
    """
    p, m, v = schedule.ranks, schedule.microbatches, schedule.virtual_stages
    match schedule.name:
        case "gpipe" | "breadth-first":
            each = [m * v] * p
        case "one-stage":
            each = [1]
        case "1f1b":
            each = [p - rank for rank in range(p)]
        case "interleaved":
            each = [2 * (p - 1 - rank) + (v - 1) * p + 1 for rank in range(p)]
        case "zb-h1":
            each = [p] * p
        case "zb-v" if m >= 2 * p - 1:
            each = [2 * p] * p
        case "dualpipe-v":
            each = [2 * p + 1] * p
        case "v-half" if m >= 2 * p:
            each = [2 * ((p + 2) // 2)] * p
        case _:
            return None
    return tuple(min(most, m * v) for most in each)


def lockstep_in_flight(schedule: Schedule) -> tuple[int, ...] | None:
    """For each rank, the most chunks in flight in uniform ticks; None where there is no formula.

    A chunk's F and B on rank r of 1F1B are 2 (p - 1 - r) ticks apart, and every tick brings a new one; W of zb-uniform
    comes 2 (p - 1) ticks after F of rank 0. In a V, the two chunks of a rank are in flight for 4 p ticks together, and
    every second tick brings a microbatch.
    """
    p, m, v = schedule.ranks, schedule.microbatches, schedule.virtual_stages
    match schedule.name:
        case "gpipe" | "breadth-first" | "one-stage" | "interleaved":
            return published_in_flight(schedule)
        case "1f1b":
            each = [2 * (p - 1 - rank) + 1 for rank in range(p)]
        case "zb-uniform" | "zb-h1" if v == 1:
            each = [2 * (p - 1) - rank + 1 for rank in range(p)]
        case "v-half" if m >= 2 * p:
            each = [2 * p] * p
        case _:
            return None
    return tuple(min(most, m * v) for most in each)


def _apply(formulas: dict[str, Formula], schedule: Schedule, durations: Durations) -> Bubble | None:
    formula = formulas.get(schedule.name)
    times = [durations.forward, durations.backward, durations.weight]
    if formula is None or durations.head or durations.transfer or any(isinstance(t, Sequence) for t in times):
        return None
    durations.check(schedule)
    forward, backward, weight = (durations.of_kind(kind, 0, schedule) for kind in Kind)
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


def _uniform_v(schedule: Schedule, f: Number, b: Number, w: Number) -> Bubble:
    return Bubble(2 * (schedule.ranks - 1) * (f + b), True, "2(p-1)(F+B) of a chunk: a V's length in uniform ticks")


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

_LOCKSTEP: dict[str, Formula] = {
    **dict.fromkeys(
        ("one-stage", "gpipe", "1f1b", "interleaved", "breadth-first", "zb-uniform", "zb-h1"), _one_f_one_b
    ),
    "zb-v": _uniform_v,
    "v-half": _uniform_v,
}
