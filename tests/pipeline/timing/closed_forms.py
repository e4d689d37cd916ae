"""Closed forms of bubbles in uniform ticks and of chunks in flight.

For chunks that take the same time, without head and transfers. p is ranks, m microbatches, v virtual stages.
"""

from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.table import Schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.per_chunk import Number

ROUNDS = {
    **dict.fromkeys(("one-stage", "gpipe", "1f1b", "interleaved", "breadth-first", "zb-uniform", "zb-h1"), 1),
    **dict.fromkeys(("zb-v", "v-half"), 2),
}
"""Of schedules with a formula for uniform ticks: how often the ranks fill; a V goes down and up."""


def lockstep_bubble(schedule: Schedule, durations: Durations) -> Number | None:
    """The bubble in uniform ticks, (p - 1) (F + B) of a chunk, twice for a V; None where there is no formula."""
    if schedule.name not in ROUNDS:
        return None
    forward, backward = (durations.kind_duration(kind, 0, schedule) for kind in (Kind.FORWARD, Kind.BACKWARD))
    return ROUNDS[schedule.name] * (schedule.ranks - 1) * (forward + backward)


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
