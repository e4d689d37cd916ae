"""A schedule in time as a trace in Chrome's JSON format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

from collections.abc import Iterator

from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.drawing.words import title
from jaxpar.pipeline.timing.per_chunk import Number
from jaxpar.pipeline.timing.simulate import Simulation
from jaxpar.pipeline.timing.timelines import Event
from jaxpar.pipeline.transfers import receiver, user_of

UNIT = 1000.0
"""Microseconds for a unit of time: traces show a unit as a millisecond."""

type Entry = dict[str, object]


def trace(simulation: Simulation) -> dict[str, object]:
    """`simulation` with a track and a counter of chunks in flight for each rank, and an arrow for each transfer."""
    schedule = simulation.schedule
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "generator": "jaxpar.schedule",
            "schedule": schedule.name,
            "mode": simulation.mode,
            "makespan": float(simulation.makespan),
            "unit": "a unit of time is shown as 1 ms",
        },
        "traceEvents": [
            *_names(simulation),
            *(_action(event) for event in simulation.timeline),
            *_transfers(simulation),
            *_in_flight(simulation),
        ],
    }


def _names(simulation: Simulation) -> Iterator[Entry]:
    schedule = simulation.schedule
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"{title(schedule)} ({simulation.mode})"}}
    for rank in range(schedule.ranks):
        yield {"ph": "M", "pid": 0, "tid": rank, "name": "thread_name", "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "pid": 0, "tid": rank, "name": "thread_sort_index", "args": {"sort_index": rank}}


def _action(event: Event) -> Entry:
    action = event.action
    return {
        "ph": "X", "pid": 0, "tid": event.rank, "ts": _micros(event.start),
        "dur": _micros(event.end) - _micros(event.start), "name": str(action), "cat": action.kind.name.lower(),
        "args": {"kind": action.kind.value, "microbatch": action.microbatch, "chunk": action.chunk},
    }  # fmt: skip


def _transfers(simulation: Simulation) -> Iterator[Entry]:
    """Arrows from the end of a sending action to the start of the action that uses the result."""
    schedule = simulation.schedule
    started = {event.action: event for event in simulation.timeline}
    for index, event in enumerate(simulation.timeline):
        user = user_of(event.action, schedule.chunks)
        if user is None or receiver(event.action, schedule) is None:
            continue
        name = "activation" if event.action.kind is Kind.FORWARD else "gradient"
        both = {"pid": 0, "id": index, "name": name, "cat": "transfer"}
        # Just inside the box: at its end, the arrow would start at the next one.
        inside = event.end - (event.end - event.start) / 100
        yield {"ph": "s", "tid": event.rank, "ts": _micros(inside), **both}
        yield {"ph": "f", "bp": "e", "tid": started[user].rank, "ts": _micros(started[user].start), **both}


def _in_flight(simulation: Simulation) -> Iterator[Entry]:
    """Chunks in flight on each rank: from the start of F to the end of B, or of W where the backward is split."""
    last = Kind.WEIGHT if simulation.schedule.splits_backward else Kind.BACKWARD
    for rank in range(simulation.schedule.ranks):
        of_rank = [event for event in simulation.timeline if event.rank == rank]
        changes = [(event.start, 1) for event in of_rank if event.action.kind is Kind.FORWARD]
        changes += [(event.end, -1) for event in of_rank if event.action.kind is last]
        count = 0
        for time, change in sorted(changes):
            count += change
            name = f"in flight, rank {rank}"
            yield {"ph": "C", "pid": 0, "ts": _micros(time), "name": name, "args": {"chunks": count}}


def _micros(time: Number) -> float:
    return round(float(time) * UNIT, 3)
