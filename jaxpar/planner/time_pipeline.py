"""Seconds of a pipeline, by the schedule simulator.

The time of a schedule is the length of its longest path, and so linear in the durations as long as the path stays the
same. The simulator is run once per schedule and rough ratio of the durations, with numbers that remember how often each
duration is in them; after a while a pipeline repeats itself every p microbatches, so that long ones are as many repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from typing import Any, cast

from jaxpar.pipeline.clocks import async_clock, lockstep_clock
from jaxpar.pipeline.durations import Durations
from jaxpar.pipeline.schedules.registry import SCHEDULES, check_sizes, make_schedule
from jaxpar.pipeline.table import Schedule, loop_placement, v_placement
from jaxpar.planner.time_ticks import lockstep_seconds

_STEPS = 5
"""Simulations between a ratio and 2.7 times it: the path of a ratio within 10% is as good as its own."""


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
    """Loss and head, both ways."""
    transfer: float
    """From a rank to the next."""

    def dot(self, counts: tuple[float, ...]) -> float:
        """Seconds of a path with so many of each."""
        own = (self.forward, self.backward, self.weight, self.head, self.transfer)
        return sum(count * seconds for count, seconds in zip(counts, own, strict=True))


class _Sum:
    """A number of seconds that knows how often each duration is in it."""

    __slots__ = ("counts", "value")

    def __init__(self, value: float, counts: tuple[float, ...]):
        self.value, self.counts = value, counts

    def __add__(self, other: Any) -> _Sum:
        if other.__class__ is not _Sum:
            return _Sum(self.value + other, self.counts)
        a, b = self.counts, other.counts
        return _Sum(self.value + other.value, (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4]))

    __radd__ = __add__

    def __sub__(self, other: Any) -> _Sum:
        if other.__class__ is not _Sum:
            return _Sum(self.value - other, self.counts)
        return _Sum(self.value - other.value, tuple(a - b for a, b in zip(self.counts, other.counts, strict=True)))

    def __lt__(self, other: Any) -> bool:
        return self.value < getattr(other, "value", other)

    def __gt__(self, other: Any) -> bool:
        return self.value > getattr(other, "value", other)

    def __bool__(self) -> bool:
        return self.value != 0


def pipeline_seconds(stages: Stages, pieces: Pieces) -> float:
    """From the start of the first forward to the end of the last backward."""
    period = stages.ranks
    least = max(1, SCHEDULES[stages.schedule].microbatches_per_rank)  # DualPipe-V cannot be made of fewer than 2p
    more = max(0, stages.microbatches // period - least)
    if more <= 1:
        return _seconds(stages, stages.microbatches, pieces)
    short = stages.microbatches - more * period
    first, second = (_seconds(stages, short + extra * period, pieces) for extra in (0, 1))
    return first + more * (second - first)


def _seconds(stages: Stages, microbatches: int, pieces: Pieces) -> float:
    """Of so many microbatches."""
    if not stages.lockstep:
        unit = pieces.forward
        rough = tuple(_rough(time / unit) for time in (pieces.backward, pieces.weight, pieces.head, pieces.transfer))
        return pieces.dot(_path(stages, microbatches, rough))
    longest = max(chunk_layers(stages.layers, stages.ranks * stages.virtual))
    return lockstep_seconds(
        stages.schedule, stages.ranks, microbatches, stages.virtual, pieces.forward * longest,
        pieces.backward * longest, pieces.weight * longest, pieces.head, pieces.transfer, stages.overlap,
    )  # fmt: skip


def bubble_free(stages: Stages, pieces: Pieces) -> float:
    """Seconds if every rank worked all the time and nothing were sent: all work, over the ranks."""
    per_layer = pieces.forward + pieces.backward
    return stages.microbatches * (stages.layers * per_layer + pieces.head) / stages.ranks


def chunk_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk: as even as can be, the middle ones taking what is over."""
    each, over = divmod(layers, chunks)
    first = (chunks - over) // 2
    return tuple(each + (first <= chunk < first + over) for chunk in range(chunks))


def _rough(ratio: float) -> float | None:
    """The logarithm of a ratio, rounded; None for tiny ones."""
    return None if ratio < 1e-3 else round(_STEPS * log(ratio)) / _STEPS


@lru_cache(maxsize=100_000)
def _path(stages: Stages, microbatches: int, rough: tuple[float | None, ...]) -> tuple[float, ...]:
    """How often each duration is in the longest path."""
    schedule = _schedule(stages.schedule, stages.ranks, microbatches, stages.virtual, stages.lockstep)
    per_chunk = chunk_layers(stages.layers, schedule.chunks)
    values = [1.0, *(0.0 if ratio is None else exp(ratio) for ratio in rough)]
    one = lambda place, times: _Sum(values[place] * times, tuple(float(times) * (place == i) for i in range(5)))
    of_chunks = lambda place: tuple(one(place, layers) for layers in per_chunk)
    durations = cast(Any, Durations)(
        of_chunks(0), of_chunks(1), of_chunks(2), head=one(3, 1), transfer=one(4, 1), overlap=stages.overlap
    )
    _, end = (lockstep_clock if stages.lockstep else async_clock)(schedule, durations)
    return cast(_Sum, end).counts


@lru_cache(maxsize=64)
def _schedule(name: str, ranks: int, microbatches: int, virtual: int, ticks: bool) -> Schedule:
    """The schedule; ticks, which take long to make, only where they are wanted."""
    if ticks:
        return make_schedule(name, ranks=ranks, microbatches=microbatches, virtual_stages=virtual)
    check_sizes(name, ranks, microbatches, virtual)
    family = SCHEDULES[name]
    rank_of = v_placement(ranks) if family.placement == "v" else loop_placement(ranks, virtual)
    orders = family.orders(ranks, microbatches, virtual)
    return Schedule(name, ranks, microbatches, virtual, rank_of, family.splits_backward, orders, ())
