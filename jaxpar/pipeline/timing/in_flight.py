"""The memory of each rank between actions: chunks in flight, and their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.table import Schedule, Tick
from jaxpar.pipeline.timing.per_chunk import Number, PerChunk, check_per_chunk, chunk_value, frozen


@dataclass(frozen=True)
class ChunkBytes:
    """Bytes of one microbatch on one chunk."""

    stash: PerChunk = 0
    """Kept from F until the end of B: activations saved for the backward, and the chunk's input."""
    kept: PerChunk = 0
    """Kept from B until W where the backward is split: output gradients of the matmuls, and the inputs they meet."""
    sent: Number = 0
    """The activation sent from one chunk to the next; its gradient is as large."""

    def __post_init__(self) -> None:
        for name in ("stash", "kept"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    def check(self, schedule: Schedule) -> None:
        """Raises ScheduleError where these cannot be the sizes of `schedule`."""
        for name in ("stash", "kept"):
            check_per_chunk(f"bytes of {name}", getattr(self, name), schedule)
        if self.sent < 0:
            raise ScheduleError(f"bytes sent must not be negative, got {self.sent}")


@dataclass(frozen=True)
class Peak:
    """The most that one rank keeps at a time."""

    in_flight: int
    """Chunks between F and B, or between F and W where the backward is split."""
    stash: int
    """Chunks between F and B."""
    kept: int
    """Chunks between B and W."""
    bytes: Number
    """Bytes of both together; a chunk's stash is freed when its B ends."""


def published_peaks(schedule: Schedule, sizes: ChunkBytes | None = None) -> tuple[Peak, ...]:
    """The peak of each rank when it works in its published order."""
    return tuple(peak(order, schedule.splits_backward, sizes) for order in schedule.orders)


def lockstep_peaks(schedule: Schedule, sizes: ChunkBytes | None = None) -> tuple[Peak, ...]:
    """The peak of each rank in the schedule's ticks, for which a program needs slots."""
    return tuple(peak(order, schedule.splits_backward, sizes) for order in orders_of(schedule.ticks))


def orders_of(ticks: Sequence[Tick]) -> tuple[tuple[Action, ...], ...]:
    """Actions of each rank, concatenated over the ticks."""
    return tuple(tuple(action for actions in of_rank for action in actions) for of_rank in zip(*ticks, strict=True))


def peak(actions: Iterable[Action], splits_backward: bool, sizes: ChunkBytes | None = None) -> Peak:
    """The peak of a rank that runs `actions` in turn: it depends on their order alone, not on how long they take."""
    sizes = sizes or ChunkBytes()
    stash = kept = most_stash = most_kept = most_in_flight = 0
    total_bytes: Number = 0
    most_bytes: Number = 0
    for action in actions:
        stash_bytes, kept_bytes = chunk_value(sizes.stash, action.chunk), chunk_value(sizes.kept, action.chunk)
        match action.kind:
            case Kind.FORWARD:
                stash, total_bytes = stash + 1, total_bytes + stash_bytes
            case Kind.BACKWARD:
                stash, total_bytes = stash - 1, total_bytes - stash_bytes
                if splits_backward:
                    kept, total_bytes = kept + 1, total_bytes + kept_bytes
            case Kind.WEIGHT:
                kept, total_bytes = kept - 1, total_bytes - kept_bytes
        most_stash, most_kept = max(most_stash, stash), max(most_kept, kept)
        most_in_flight, most_bytes = max(most_in_flight, stash + kept), max(most_bytes, total_bytes)
    return Peak(most_in_flight, most_stash, most_kept, most_bytes)
