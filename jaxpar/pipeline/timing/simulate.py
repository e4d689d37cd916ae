"""Simulates a schedule: its time, and the memory and traffic of each rank. No devices, no JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.table import Schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.in_flight import ChunkBytes, Peak, lockstep_peaks, published_peaks
from jaxpar.pipeline.timing.per_chunk import Number
from jaxpar.pipeline.timing.timelines import Event, Timeline, async_timeline, branching_timeline, lockstep_timeline
from jaxpar.pipeline.transfers import receiver

type Mode = Literal["async", "lockstep", "branching"]
"""`async`: each rank takes its next action when it can, as papers draw schedules. `lockstep`: uniform ticks, as one
program runs them that is the same on every rank. `branching`: ticks in which each rank does one action of its own."""

TIMELINES: dict[Mode, Callable[[Schedule, Durations], Timeline]] = {
    "async": async_timeline,
    "lockstep": lockstep_timeline,
    "branching": branching_timeline,
}


@dataclass(frozen=True)
class Simulation:
    """A schedule in time."""

    schedule: Schedule
    mode: Mode
    makespan: Number
    """Time from the start of the first action to the end of the last, in the unit of the durations."""
    ideal: Number
    """The time if every rank worked all the time: all work, over the ranks."""
    timeline: tuple[Event, ...]
    """(rank, action, start, end), by start."""
    peaks: tuple[Peak, ...]
    """The most that each rank keeps."""
    transfers_of: tuple[int, ...]
    """Activations and gradients that each rank sends to another."""
    bytes_sent: tuple[Number, ...]
    """Bytes that each rank sends to others."""

    @property
    def bubble(self) -> Number:
        """Time on top of the ideal."""
        return self.makespan - self.ideal

    @property
    def bubble_fraction(self) -> Number:
        """(makespan - ideal) / ideal."""
        return self.bubble / self.ideal if self.ideal else 0.0

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Maximum number of chunks in flight on each rank: from F to B, or to W if the backward is split."""
        return tuple(peak.in_flight for peak in self.peaks)

    @property
    def peak_bytes(self) -> tuple[Number, ...]:
        """Maximum bytes that each rank saves between actions."""
        return tuple(peak.bytes for peak in self.peaks)

    @property
    def transfers(self) -> int:
        """Activations and gradients that go from one rank to another."""
        return sum(self.transfers_of)

    @cached_property
    def longest_rank(self) -> Number:
        """The longest time of a rank from its first start to its last end: the cost by which zero-bubble papers count.

        Where optimizer steps need not wait for each other, the next batch starts on rank 0 while the last rank still
        works on this one, so that only what a rank waits between its own actions is lost (arXiv:2401.10241, section 4).
        """
        spans = [
            max(event.end for event in events) - min(event.start for event in events)
            for rank in range(self.schedule.ranks)
            if (events := [event for event in self.timeline if event.rank == rank])
        ]
        return max(spans)


def simulate(
    schedule: Schedule, durations: Durations | None = None, *, mode: Mode = "async", sizes: ChunkBytes | None = None
) -> Simulation:
    """`schedule` in time, in one of three modes; raises ScheduleError for numbers that do not fit it."""
    durations, sizes = durations or Durations(), sizes or ChunkBytes()
    if mode not in TIMELINES:
        raise ScheduleError(f"there is no mode {mode!r}; there are: {', '.join(TIMELINES)}")
    durations.check(schedule)
    sizes.check(schedule)
    timeline, makespan = TIMELINES[mode](schedule, durations)
    peaks = (lockstep_peaks if mode == "lockstep" else published_peaks)(schedule, sizes)
    sent = transfers_of(schedule)
    return Simulation(
        schedule=schedule,
        mode=mode,
        makespan=makespan,
        ideal=work(schedule, durations) / schedule.ranks,
        timeline=timeline,
        peaks=peaks,
        transfers_of=sent,
        bytes_sent=tuple(count * sizes.sent for count in sent),
    )


def work(schedule: Schedule, durations: Durations) -> Number:
    """The time of all actions of all ranks together."""
    return sum(durations.duration(action, schedule) for order in schedule.orders for action in order)


def transfers_of(schedule: Schedule) -> tuple[int, ...]:
    """The number of activations and gradients that each rank sends to another."""
    return tuple(sum(receiver(action, schedule) is not None for action in order) for order in schedule.orders)
