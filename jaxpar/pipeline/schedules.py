"""Schedules: for each tick and each pipeline rank, at most one action of each kind. Pure data, no JAX.

Gradient accumulation is the schedule of one stage: each microbatch goes forward and backward in one tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import groupby


class Kind(Enum):
    """What an action does to a microbatch on a chunk of layers."""

    FORWARD = "F"
    BACKWARD = "B"


@dataclass(frozen=True)
class Action:
    """One microbatch through one chunk of layers, in one direction."""

    kind: Kind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.chunk}{self.kind.value}{self.microbatch}"


type Tick = tuple[tuple[Action, ...], ...]
"""For each rank, its actions in this tick."""


@dataclass(frozen=True)
class Schedule:
    """A table of actions: `ticks[t][rank]`."""

    name: str
    stages: int
    microbatches: int
    ticks: tuple[Tick, ...]

    def runs(self) -> Iterator[tuple[frozenset[Kind], list[Tick]]]:
        """Consecutive ticks in which the same kinds occur, on whichever rank: each is one loop of the executor."""
        for kinds, ticks in groupby(self.ticks, key=lambda tick: frozenset(a.kind for rank in tick for a in rank)):
            yield kinds, list(ticks)


def one_stage(microbatches: int) -> Schedule:
    """Gradient accumulation: microbatch after microbatch, forward then backward."""
    ticks = tuple(((Action(Kind.FORWARD, m), Action(Kind.BACKWARD, m)),) for m in range(microbatches))
    return Schedule("one_stage", 1, microbatches, ticks)
