"""How long the actions of a schedule take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.in_flight import check_per_chunk, frozen, per_chunk
from jaxpar.pipeline.table import Schedule

type Times = float | Sequence[float]
"""A time for all chunks, or one for each in the order of the model."""


@dataclass(frozen=True)
class Durations:
    """How long actions take, in any unit. Whole numbers and fractions stay exact."""

    forward: Times = 1
    """F of a chunk."""
    backward: Times = 2
    """The whole backward of a chunk, its weight gradients included."""
    weight: Times = 1
    """The part of the backward that is weight gradients: W takes it, and B the rest, where the backward is split."""
    head: float = 0
    """Loss and head, forward and backward: the last chunk's B takes so much longer."""
    transfer: float = 0
    """From one rank to another, for an activation or its gradient."""
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
            weight, backward = per_chunk(self.weight, chunk), per_chunk(self.backward, chunk)
            if schedule.splits_backward and weight > backward:
                raise ScheduleError(
                    f"weight is a part of backward and cannot take longer, got {weight} of {backward} for chunk {chunk}"
                )

    def of(self, action: Action, schedule: Schedule) -> float:
        """How long `action` takes in `schedule`, the head included."""
        return self.of_kind(action.kind, action.chunk, schedule) + self.head_of(action, schedule)

    def of_kind(self, kind: Kind, chunk: int, schedule: Schedule) -> float:
        """How long one kind of action takes on one chunk, without the head."""
        match kind:
            case Kind.FORWARD:
                return per_chunk(self.forward, chunk)
            case Kind.WEIGHT:
                return per_chunk(self.weight, chunk)
            case Kind.BACKWARD:
                apart = per_chunk(self.weight, chunk) if schedule.splits_backward else 0
                return per_chunk(self.backward, chunk) - apart

    def head_of(self, action: Action, schedule: Schedule) -> float:
        """How long the head takes in `action`: all of it in B of the last chunk, nothing elsewhere."""
        return self.head if action.kind is Kind.BACKWARD and action.chunk == schedule.chunks - 1 else 0

    def longest(self, kind: Kind, schedule: Schedule) -> float:
        """The longest action of a kind over all chunks, without the head: what a program padded to it takes."""
        return max(self.of_kind(kind, chunk, schedule) for chunk in range(schedule.chunks))
