"""The table of a schedule: the actions of each rank, in order and in ticks. Pure data, no JAX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from jaxpar.pipeline.actions import Action, Kind

type Order = tuple[Action, ...]
"""The actions of one rank, one after the other."""

type Tick = tuple[tuple[Action, ...], ...]
"""Actions of one tick by rank: at most one of each kind, in the order F, B, W."""


def loop_placement(ranks: int, virtual_stages: int) -> tuple[int, ...]:
    """The rank of each chunk in a round-robin placement: chunk mod ranks."""
    return tuple(chunk % ranks for chunk in range(ranks * virtual_stages))


def v_placement(ranks: int) -> tuple[int, ...]:
    """The rank of each of 2 * ranks chunks placed in a V: down the ranks and back, so that rank 0 has both ends."""
    return (*range(ranks), *reversed(range(ranks)))


@dataclass(frozen=True)
class Schedule:
    """A schedule for `ranks` pipeline ranks and `microbatches` microbatches, as data."""

    name: str
    ranks: int
    microbatches: int
    virtual_stages: int
    """Chunks of layers on each rank."""
    rank_of: tuple[int, ...]
    """The rank of each chunk, in the order of the model."""
    splits_backward: bool
    """Whether the gradients of the weights (W) are actions of their own."""
    orders: tuple[Order, ...]
    """`orders[rank]`: the order in which the schedule was published; each rank takes its next action when it can."""
    ticks: tuple[Tick, ...]
    """`ticks[t][rank]`: the same actions in uniform ticks, as run by a program that is the same on every rank."""

    @property
    def chunks(self) -> int:
        """Chunks of the whole model."""
        return len(self.rank_of)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of action that the schedule has."""
        return kinds_of(self.splits_backward)

    @cached_property
    def chunks_of(self) -> tuple[tuple[int, ...], ...]:
        """`chunks_of[rank]`: the chunks of a rank, in the order of the model."""
        return tuple(tuple(c for c, owner in enumerate(self.rank_of) if owner == rank) for rank in range(self.ranks))

    def runs(self) -> Iterator[tuple[frozenset[Kind], list[Tick]]]:
        """Consecutive ticks in which the same kinds occur, on whichever rank: each is one loop of the executor."""
        for kinds, ticks in groupby(self.ticks, key=kinds_in):
            yield kinds, list(ticks)


def kinds_of(splits_backward: bool) -> tuple[Kind, ...]:
    """The kinds of action of a schedule that splits the backward, or does not."""
    return tuple(Kind) if splits_backward else (Kind.FORWARD, Kind.BACKWARD)


def kinds_in(tick: Tick) -> frozenset[Kind]:
    """The kinds of action that occur in a tick, on whichever rank."""
    return frozenset(action.kind for rank in tick for action in rank)


def needs(action: Action, chunks: int) -> tuple[Action, ...]:
    """The actions that must be over before `action` can start, in a model of `chunks` chunks.

    F needs F of the chunk before; B needs F of its chunk and B of the chunk after; W needs B of its chunk.
    """
    microbatch, chunk = action.microbatch, action.chunk
    match action.kind:
        case Kind.FORWARD:
            return (Action(Kind.FORWARD, microbatch, chunk - 1),) if chunk > 0 else ()
        case Kind.BACKWARD:
            after = (Action(Kind.BACKWARD, microbatch, chunk + 1),) if chunk < chunks - 1 else ()
            return (Action(Kind.FORWARD, microbatch, chunk), *after)
        case Kind.WEIGHT:
            return (Action(Kind.BACKWARD, microbatch, chunk),)
