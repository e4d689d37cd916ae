"""Validates a schedule: each action once and in its place, after its inputs, and without a deadlock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.drawing.grid import cells_of_orders, cells_of_ticks, grid
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.lockstep import deadlock_positions
from jaxpar.pipeline.table import Schedule, needs
from jaxpar.pipeline.transfers import receiver


@dataclass(frozen=True)
class Fault:
    """An error in a schedule, with its place."""

    sentence: str
    table: Literal["orders", "ticks"]
    rank: int
    column: int
    """A tick, or a place in the order of the rank; past the end where an action is missing."""


@dataclass(frozen=True)
class _Placed:
    """An action in one of the two tables of a schedule."""

    action: Action
    rank: int
    column: int
    table: Literal["orders", "ticks"]

    def fault(self, sentence: str) -> Fault:
        where = f"rank {self.rank}, {'tick' if self.table == 'ticks' else 'place'} {self.column}"
        return Fault(f"{self.action} ({where}) {sentence}", self.table, self.rank, self.column)


def validate(schedule: Schedule, *, in_flight: int | None = None, lockstep_in_flight: int | None = None) -> None:
    """Raises ScheduleError for the first fault of `schedule`: a sentence, and a grid with the faulty cell marked.

    Of the orders and of the ticks: every microbatch goes forward and backward through every chunk exactly once, on the
    rank of the chunk (and W likewise where the backward is split); nothing runs before what it needs; what a rank
    sends goes to a neighbour. The orders do not deadlock. At most `in_flight` chunks are in flight on a rank in its
    published order, and `lockstep_in_flight` in ticks, where these are given.
    """
    validate_orders(schedule, in_flight=in_flight)
    _refuse(schedule, tick_faults(schedule, in_flight=lockstep_in_flight))


def validate_orders(schedule: Schedule, *, in_flight: int | None = None) -> None:
    """Validate the orders only: the schedule need not have ticks yet. See `validate`."""
    _refuse(schedule, order_faults(schedule, in_flight=in_flight))


def order_faults(schedule: Schedule, *, in_flight: int | None = None) -> Iterator[Fault]:
    """The faults of a schedule's orders, first those that explain others."""
    _check_shape(schedule)
    placed = [
        _Placed(action, rank, column, "orders")
        for rank, order in enumerate(schedule.orders)
        for column, action in enumerate(order)
    ]
    yield from _repeated_actions(schedule, placed, "orders")
    yield from _long_transfers(schedule, placed)
    yield from _deadlocks(schedule)
    yield from _over_limit(schedule, placed, in_flight)


def tick_faults(schedule: Schedule, *, in_flight: int | None = None) -> Iterator[Fault]:
    """The faults of a schedule's ticks, first those that explain others."""
    _check_shape(schedule)
    placed = [
        _Placed(action, rank, column, "ticks")
        for column, tick in enumerate(schedule.ticks)
        for rank, actions in enumerate(tick)
        for action in actions
    ]
    yield from _repeated_actions(schedule, placed, "ticks")
    yield from _crowded_ticks(schedule)
    yield from _too_early(schedule, placed)
    yield from _over_limit(schedule, placed, in_flight)


def _refuse(schedule: Schedule, faults: Iterator[Fault]) -> None:
    for fault in faults:
        by_order = fault.table == "orders"
        cells = cells_of_orders(schedule.orders) if by_order else cells_of_ticks(schedule.ticks)
        drawn = grid(cells, mark=(fault.rank, fault.column)) if cells else "(no ticks)"
        raise ScheduleError(f"{schedule.name}: {fault.sentence}\n{drawn}")


def _check_shape(schedule: Schedule) -> None:
    """Raises ScheduleError where the tables do not have the schedule's sizes, so that there is no grid to draw."""
    ranks, each = schedule.ranks, schedule.virtual_stages
    if len(schedule.orders) != ranks or any(len(tick) != ranks for tick in schedule.ticks):
        raise ScheduleError(f"{schedule.name}: not every table has {ranks} ranks")
    for rank, chunks in enumerate(schedule.chunks_of):
        if len(chunks) != each:
            raise ScheduleError(
                f"{schedule.name}: rank {rank} has {len(chunks)} of the {schedule.chunks} chunks, expected {each}"
            )


def _repeated_actions(schedule: Schedule, placed: list[_Placed], table: Literal["orders", "ticks"]) -> Iterator[Fault]:
    wanted = {
        Action(kind, m, chunk)
        for kind in schedule.kinds
        for m in range(schedule.microbatches)
        for chunk in range(schedule.chunks)
    }
    seen: set[Action] = set()
    for placement in placed:
        action = placement.action
        if action not in wanted:
            split = "" if schedule.splits_backward else ", and no W"
            yield placement.fault(
                f"is not in this schedule, which has chunks 0 to {schedule.chunks - 1} and microbatches 0 to "
                f"{schedule.microbatches - 1}{split}"
            )
        elif schedule.rank_of[action.chunk] != placement.rank:
            owner = schedule.rank_of[action.chunk]
            yield placement.fault(f"is on the wrong rank: chunk {action.chunk} is on rank {owner}")
        elif action in seen:
            yield placement.fault("comes twice")
        seen.add(action)
    for action in sorted(wanted - seen, key=lambda a: (a.microbatch, a.chunk, a.kind.value)):
        rank = schedule.rank_of[action.chunk]
        end = max((placement.column + 1 for placement in placed if placement.rank == rank), default=0)
        yield Fault(f"{action} is missing on rank {rank}", table, rank, end)


def _long_transfers(schedule: Schedule, placed: list[_Placed]) -> Iterator[Fault]:
    """A program sends along a ring of ranks, one step at a time."""
    for placement in placed:
        target = receiver(placement.action, schedule)
        apart = 0 if target is None else (target - placement.rank) % schedule.ranks
        if apart not in (0, 1, schedule.ranks - 1):
            yield placement.fault(f"sends to rank {target}, which is not a neighbour of rank {placement.rank}")


def _deadlocks(schedule: Schedule) -> Iterator[Fault]:
    position = deadlock_positions(schedule.orders, schedule.chunks)
    waiting = [
        _Placed(order[at], rank, at, "orders")
        for rank, (order, at) in enumerate(zip(schedule.orders, position, strict=True))
        if at < len(order)
    ]
    before = {a for order, at in zip(schedule.orders, position, strict=True) for a in order[:at]}
    lost = [next(n for n in needs(placement.action, schedule.chunks) if n not in before) for placement in waiting]
    # A rank that waits for itself explains why the others wait for it.
    for on_rank in (True, False):
        for placement, missing in zip(waiting, lost, strict=True):
            rank = schedule.rank_of[missing.chunk]
            if (rank == placement.rank) == on_rank:
                where = "later in its own order" if on_rank else f"on rank {rank}, which waits too"
                yield placement.fault(
                    f"never starts: it needs {missing}, which comes {where}, so the schedule deadlocks"
                )


def _crowded_ticks(schedule: Schedule) -> Iterator[Fault]:
    kinds = list(Kind)
    for column, tick in enumerate(schedule.ticks):
        for rank, actions in enumerate(tick):
            indices = [kinds.index(action.kind) for action in actions]
            if indices != sorted(set(indices)):
                last = _Placed(actions[-1], rank, column, "ticks")
                yield last.fault("is in a cell that has more than one F, B or W, or not in this order")


def _too_early(schedule: Schedule, placed: list[_Placed]) -> Iterator[Fault]:
    when = {placement.action: placement for placement in placed}
    for placement in placed:
        for need in needs(placement.action, schedule.chunks):
            source = when.get(need)
            # Within a tick, F comes before B and B before W: a rank can go on with its own chunk at once.
            same_chunk = need.chunk == placement.action.chunk
            if source is not None and source.column + (not same_chunk) > placement.column:
                yield placement.fault(f"needs {need}, which is made in tick {source.column} on rank {source.rank}")


def _over_limit(schedule: Schedule, placed: list[_Placed], limit: int | None) -> Iterator[Fault]:
    last = Kind.WEIGHT if schedule.splits_backward else Kind.BACKWARD
    count = [0] * schedule.ranks
    for placement in placed if limit is not None else []:
        count[placement.rank] += (placement.action.kind is Kind.FORWARD) - (placement.action.kind is last)
        if placement.action.kind is Kind.FORWARD and count[placement.rank] > (limit or 0):
            yield placement.fault(
                f"is chunk {count[placement.rank]} in flight on rank {placement.rank}, over the limit of {limit}"
            )
