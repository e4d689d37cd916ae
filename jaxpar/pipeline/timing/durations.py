"""Durations of the actions of a schedule."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.table import Schedule
from jaxpar.pipeline.timing.per_chunk import Number, PerChunk, check_per_chunk, chunk_value, frozen


@dataclass(frozen=True)
class Durations:
    """Durations of actions, in any unit. Integers and fractions stay exact."""

    forward: PerChunk = 1
    """F of a chunk."""
    backward: PerChunk = 2
    """The whole backward of a chunk, its weight gradients included."""
    weight: PerChunk = 1
    """The part of the backward that is weight gradients: W takes it, and B the rest, where the backward is split."""
    head: Number = 0
    """Loss and head, forward and backward: the last chunk's B takes so much longer."""
    transfer: Number = 0
    """Time to send an activation or its gradient from one rank to another."""
    overlap: bool = True
    """Whether a rank computes while it sends. If not, sending keeps it busy."""

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "weight"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    def check(self, schedule: Schedule) -> None:
        """Raises ScheduleError where these cannot be the durations of `schedule`."""
        for name in ("forward", "backward", "weight"):
            check_per_chunk(name, getattr(self, name), schedule)
        for name in ("head", "transfer"):
            if getattr(self, name) < 0:
                raise ScheduleError(f"{name} must not be negative, got {getattr(self, name)}")
        for chunk in range(schedule.chunks):
            weight, backward = chunk_value(self.weight, chunk), chunk_value(self.backward, chunk)
            if schedule.splits_backward and weight > backward:
                raise ScheduleError(
                    f"weight is a part of backward and cannot take longer, got {weight} of {backward} for chunk {chunk}"
                )

    def duration(self, action: Action, schedule: Schedule) -> Number:
        """Duration of `action` in `schedule`, including the head."""
        return self.kind_duration(action.kind, action.chunk, schedule) + self.head_of(action, schedule)

    def kind_duration(self, kind: Kind, chunk: int, schedule: Schedule) -> Number:
        """Duration of one kind of action on one chunk, without the head."""
        match kind:
            case Kind.FORWARD:
                return chunk_value(self.forward, chunk)
            case Kind.WEIGHT:
                return chunk_value(self.weight, chunk)
            case Kind.BACKWARD:
                apart = chunk_value(self.weight, chunk) if schedule.splits_backward else 0
                return chunk_value(self.backward, chunk) - apart

    def head_of(self, action: Action, schedule: Schedule) -> Number:
        """Time of the head in `action`: all of it in B of the last chunk, 0 elsewhere."""
        return self.head if action.kind is Kind.BACKWARD and action.chunk == schedule.chunks - 1 else 0

    def longest(self, kind: Kind, schedule: Schedule) -> Number:
        """The longest action of a kind over all chunks, without the head: what a program padded to it takes."""
        return max(self.kind_duration(kind, chunk, schedule) for chunk in range(schedule.chunks))
