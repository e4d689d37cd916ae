"""The workload of a schedule: times and bytes of one microbatch, whatever the number of chunks on a rank."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from jaxpar.pages.units import plural
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.table import Schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.in_flight import ChunkBytes
from jaxpar.pipeline.timing.per_chunk import Number, PerChunk


@dataclass(frozen=True)
class Workload:
    """Times and bytes of one microbatch through all layers of a rank.

    A rank's layers are the same work in one chunk or in several: each of v chunks has a v-th of it. So schedules with
    different numbers of chunks can be compared. What travels between ranks has the same size whatever the chunk.
    """

    forward: Number = 1
    """F of all layers of a rank."""
    backward: Number = 2
    """The whole backward of all layers of a rank."""
    weight: Number = 1
    """The part of the backward that is weight gradients (W, where the backward is split)."""
    head: Number = 0
    """Loss and head on the last chunk."""
    transfer: Number = 0
    """An activation, or its gradient, from one rank to another."""
    stage_times: tuple[Number, ...] | None = None
    """Factor on these times for each rank, or for each chunk in the order of the model."""
    stash: Number = 0
    """Bytes that all layers of a rank keep from F to B."""
    kept: Number = 0
    """Bytes that all layers of a rank keep from B to W, where the backward is split."""
    sent: Number = 0
    """Bytes of an activation between ranks; its gradient is as large."""
    unit: str = ""
    """Unit of the times, if known."""

    def durations(self, schedule: Schedule) -> Durations:
        """The times of the chunks of `schedule`; raises ScheduleError where `stage_times` does not fit it."""
        factors = self._factors(schedule)
        times = (self.forward, self.backward, self.weight)
        forward, backward, weight = (_per_chunk(time, factors, schedule.virtual_stages) for time in times)
        return Durations(forward, backward, weight, self.head, self.transfer)

    def sizes(self, schedule: Schedule) -> ChunkBytes:
        """The bytes of the chunks of `schedule`; uneven chunks keep bytes in proportion to their times."""
        factors = self._factors(schedule)
        stash, kept = (_per_chunk(size, factors, schedule.virtual_stages) for size in (self.stash, self.kept))
        return ChunkBytes(stash, kept, self.sent)

    def _factors(self, schedule: Schedule) -> tuple[Number, ...] | None:
        """A factor for each chunk; None where all are alike."""
        factors = self.stage_times
        if factors is None or len(factors) == schedule.chunks:
            return factors
        if len(factors) == schedule.ranks:
            return tuple(factors[rank] for rank in schedule.rank_of)
        chunks = f", or {schedule.chunks}, one for each chunk" if schedule.chunks != schedule.ranks else ""
        raise ScheduleError(
            f"stage times: {plural(len(factors), 'entry')}; {schedule.name} needs {schedule.ranks}, one for each "
            f"rank{chunks}"
        )


def _per_chunk(total: Number, factors: tuple[Number, ...] | None, virtual_stages: int) -> PerChunk:
    """A rank's part of each chunk: a number where chunks are alike, so that closed formulas can be asked."""
    each = _divided(total, virtual_stages)
    return each if factors is None else tuple(_plain(each * factor) for factor in factors)


def _divided(total: Number, parts: int) -> Number:
    return total / parts if isinstance(total, float) else _plain(Fraction(total) / parts)


def _plain(value: Number) -> Number:
    """A fraction that is a whole number, as one."""
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else value
