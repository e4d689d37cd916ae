"""Numbers that are the same for all chunks, or one for each in the order of the model."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from jaxpar.pages.units import plural
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.table import Schedule

type Number = float | Fraction
"""Whole numbers and fractions stay exact."""

type PerChunk = Number | Sequence[Number]
"""A number for all chunks, or one for each in the order of the model."""


def chunk_value(value: PerChunk, chunk: int) -> Number:
    """The number for one chunk."""
    return value[chunk] if isinstance(value, Sequence) else value


def frozen(value: PerChunk) -> Number | tuple[Number, ...]:
    """A sequence as a tuple, a number as it is."""
    return tuple(value) if isinstance(value, Sequence) else value


def check_per_chunk(name: str, value: PerChunk, schedule: Schedule) -> None:
    """Raises ScheduleError where `value` has not one entry for each chunk of `schedule`, or a negative one."""
    values = value if isinstance(value, Sequence) else [value]
    if isinstance(value, Sequence) and len(value) != schedule.chunks:
        raise ScheduleError(
            f"{name} has {plural(len(value), 'entry')} for {plural(schedule.chunks, 'chunk')} ({schedule.name})"
        )
    if min(values) < 0:
        raise ScheduleError(f"{name} must not be negative, got {min(values)}")
