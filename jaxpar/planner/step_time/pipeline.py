"""Seconds of a pipeline from the schedule simulator.

The time of a schedule is the length of its longest path, and so linear in the durations as long as the path stays the
same. The simulator runs once per schedule and rough ratio of the durations, and the longest path is traced back
through it. After a while a pipeline repeats itself every p microbatches, so long ones are extrapolated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log
from typing import NamedTuple

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.schedules.registry import SCHEDULES, check_sizes
from jaxpar.pipeline.table import Schedule, loop_placement, needs, v_placement
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.simulate import simulate
from jaxpar.pipeline.timing.timelines import Event, async_timeline
from jaxpar.pipeline.transfers import receiver
from jaxpar.planner.step_time.ticks import lockstep_seconds

_STEPS = 5
"""Simulations between a ratio and 2.7 times it: the path of a ratio within 10% is as good as its own."""


type Counts = tuple[float, ...]
"""How often each duration of `Pieces` is in a path."""


@dataclass(frozen=True)
class Stages:
    """A pipeline's shape."""

    schedule: str
    ranks: int
    microbatches: int
    virtual: int
    layers: int
    """Of the whole model."""
    lockstep: bool
    overlap: bool
    """Whether a rank computes while it sends."""


@dataclass(frozen=True)
class Pieces:
    """Durations, in seconds."""

    forward: float
    """Of a layer."""
    backward: float
    """Of a layer, all of it."""
    weight: float
    """The part of it that is gradients of weights."""
    head: float
    """Loss and head, forward and backward."""
    transfer: float
    """From a rank to the next."""
    sums: float = 0.0
    """A sum over all ranks, which share embedding and head, in every forward of a chunk and every backward."""

    def dot(self, counts: Counts) -> float:
        """Seconds of a path with so many of each."""
        own = (self.forward, self.backward, self.weight, self.head, self.transfer)
        return sum(count * seconds for count, seconds in zip(counts, own, strict=True))


class ChunkTime(NamedTuple):
    """Seconds of one microbatch in a chunk."""

    forward: float
    backward: float
    """All of it."""
    weight: float
    """The part of it that is gradients of weights."""


def pipeline_seconds(stages: Stages, pieces: Pieces) -> float:
    """From the start of the first forward to the end of the last backward."""
    return _of_many(stages, lambda microbatches: _seconds(stages, microbatches, pieces))


def seconds_of_chunks(stages: Stages, chunks: Sequence[ChunkTime], head: float, transfer: float) -> float:
    """`pipeline_seconds` for chunks that differ, in the order of the model.

    In lockstep all wait, for each kind of work, for the chunk that takes longest for it.
    """
    if stages.lockstep:
        weight = max(chunk.weight for chunk in chunks)
        backward = max(chunk.backward for chunk in chunks)
        if SCHEDULES[stages.schedule].splits_backward:
            backward = weight + max(chunk.backward - chunk.weight for chunk in chunks)
        slowest = Pieces(max(chunk.forward for chunk in chunks), backward, weight, head, transfer)
        return pipeline_seconds(replace(stages, layers=stages.ranks * stages.virtual), slowest)
    forward, backward, weight = zip(*chunks, strict=True)
    durations = Durations(forward, backward, weight, head, transfer, stages.overlap)
    make = lambda microbatches: _schedule(stages.schedule, stages.ranks, microbatches, stages.virtual)
    return _of_many(stages, lambda microbatches: float(simulate(make(microbatches), durations).makespan))


def _of_many(stages: Stages, seconds: Callable[[int], float]) -> float:
    """`seconds` of all microbatches, extrapolated from those of few."""
    period = stages.ranks
    least = max(1, SCHEDULES[stages.schedule].microbatches_per_rank)  # DualPipe-V cannot be made of fewer than 2p
    more = max(0, stages.microbatches // period - least)
    if more <= 1:
        return seconds(stages.microbatches)
    short = stages.microbatches - more * period
    first, second = (seconds(short + extra * period) for extra in (0, 1))
    return first + more * (second - first)


def _seconds(stages: Stages, microbatches: int, pieces: Pieces) -> float:
    """The seconds of so many microbatches."""
    if not stages.lockstep:
        assert not pieces.sums, "ranks share embedding and head in uniform ticks"
        unit = pieces.forward
        rough = tuple(_rough(time / unit) for time in (pieces.backward, pieces.weight, pieces.head, pieces.transfer))
        return pieces.dot(_path(stages, microbatches, rough))
    longest = max(chunk_layers(stages.layers, stages.ranks * stages.virtual))
    return lockstep_seconds(
        stages.schedule, stages.ranks, microbatches, stages.virtual, pieces.forward * longest + pieces.sums,
        pieces.backward * longest + pieces.sums, pieces.weight * longest, pieces.head, pieces.transfer, stages.overlap,
    )  # fmt: skip


@lru_cache(maxsize=10_000)
def chunk_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk: as even as possible; the middle ones take the remainder."""
    each, over = divmod(layers, chunks)
    first = (chunks - over) // 2
    return tuple(each + (first <= chunk < first + over) for chunk in range(chunks))


def _rough(ratio: float) -> float | None:
    """The logarithm of a ratio, rounded; None for tiny ones."""
    return None if ratio < 1e-3 else round(_STEPS * log(ratio)) / _STEPS


@lru_cache(maxsize=100_000)
def _path(stages: Stages, microbatches: int, rough: tuple[float | None, ...]) -> Counts:
    """How often each duration is in the longest path, in the order of `Pieces`."""
    schedule = _schedule(stages.schedule, stages.ranks, microbatches, stages.virtual)
    per_chunk = chunk_layers(stages.layers, schedule.chunks)
    backward, weight, head, transfer = (0.0 if ratio is None else exp(ratio) for ratio in rough)
    of_chunks = lambda seconds: tuple(seconds * layers for layers in per_chunk)
    durations = Durations(
        of_chunks(1.0), of_chunks(backward), of_chunks(min(weight, backward)), head, transfer, stages.overlap
    )
    events, _ = async_timeline(schedule, durations)
    return _Trace(schedule, durations, events, per_chunk).counts()


class _Trace:
    """Goes back from the last end of a simulation to what each action waited for."""

    def __init__(self, schedule: Schedule, durations: Durations, events: Sequence[Event], per_chunk: tuple[int, ...]):
        self.schedule, self.durations, self.per_chunk = schedule, durations, per_chunk
        self.of_action = {event.action: event for event in events}
        self.before: dict[Action, Event] = {}
        """The event of the same rank before each."""
        last: dict[int, Event] = {}
        for event in events:
            if event.rank in last:
                self.before[event.action] = last[event.rank]
            last[event.rank] = event
        self.last = last.values()

    def counts(self) -> Counts:
        """How often each duration is in the path."""
        counts = [0.0] * 5
        event: Event | None = max(self.last, key=self._free)
        counts[4] += self._free(event) > event.end
        while event is not None:
            self._count(event.action, counts)
            event = self._waited_for(event, counts)
        return tuple(counts)

    def _free(self, event: Event) -> float:
        """When the rank can go on after `event`."""
        end, transfer = float(event.end), float(self.durations.transfer)
        sends = not self.durations.overlap and receiver(event.action, self.schedule) is not None
        return end + transfer if sends else end

    def _count(self, action: Action, counts: list[float]) -> None:
        layers = self.per_chunk[action.chunk]
        match action.kind:
            case Kind.FORWARD:
                counts[0] += layers
            case Kind.WEIGHT:
                counts[2] += layers
            case Kind.BACKWARD:
                counts[1] += layers
                counts[2] -= layers * self.schedule.splits_backward
                counts[3] += action.chunk == self.schedule.chunks - 1

    def _waited_for(self, event: Event, counts: list[float]) -> Event | None:
        """What `event` started right after; None at the start of all."""
        before = self.before.get(event.action)
        if before is not None and self._free(before) == event.start:
            counts[4] += self._free(before) > before.end
            return before
        for need in needs(event.action, self.schedule.chunks):
            made = self.of_action[need]
            travels = made.rank != event.rank
            if (made.end + self.durations.transfer if travels else made.end) == event.start:
                counts[4] += travels
                return made
        return None


@lru_cache(maxsize=64)
def _schedule(name: str, ranks: int, microbatches: int, virtual: int) -> Schedule:
    """The schedule without uniform ticks, which take long to make."""
    check_sizes(name, ranks, microbatches, virtual)
    family = SCHEDULES[name]
    rank_of = v_placement(ranks) if family.placement == "v" else loop_placement(ranks, virtual)
    orders = family.orders(ranks, microbatches, virtual)
    return Schedule(name, ranks, microbatches, virtual, rank_of, family.splits_backward, orders, ())
