"""From the order in which each rank works to ticks that all ranks share."""

from __future__ import annotations

from collections.abc import Sequence

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.table import Order, Tick, needs


def lockstep_ticks(orders: Sequence[Order], chunks: int) -> tuple[Tick, ...]:
    """The ticks of a program that is the same on every rank: each tick is at most one F, then one B, then one W.

    What a rank makes in a tick, others can use from the next tick on; within its rank and tick, B can use what F made
    and W what B made. Each kind keeps the order that it has in `orders`. A B waits for all F that stand before it (so
    GPipe stays GPipe); F runs ahead of B, for a tick in which only other ranks go forward takes as long as one in
    which all do. The k-th W of every rank runs in the first tick in which all ranks can: ticks with a W are then as
    few as there are W on a rank.

    Raises ScheduleError where the orders wait for each other in a circle.
    """
    return _Lockstep(orders, chunks).run()


def branching_ticks(orders: Sequence[Order], chunks: int) -> tuple[Tick, ...]:
    """The ticks of a program in which ranks do different things: each tick is at most one action of any kind.

    Every rank keeps its published order. What a rank makes in a tick can be used from the next tick on.
    Raises ScheduleError where the orders wait for each other in a circle.
    """
    done: set[Action] = set()
    position = [0] * len(orders)
    ticks: list[Tick] = []
    while any(at < len(order) for at, order in zip(position, orders, strict=True)):
        tick = []
        for rank, order in enumerate(orders):
            ready = position[rank] < len(order) and done.issuperset(needs(order[position[rank]], chunks))
            tick.append((order[position[rank]],) if ready else ())
            position[rank] += ready
        if not any(tick):
            raise circle(orders, position)
        done.update(action for actions in tick for action in actions)
        ticks.append(tuple(tick))
    return tuple(ticks)


def circle(orders: Sequence[Order], position: Sequence[int]) -> ScheduleError:
    """The error of orders in which every rank waits; `position[rank]` is its first action that cannot start."""
    stuck = [
        f"rank {rank} waits with {order[at]}"
        for rank, (order, at) in enumerate(zip(orders, position, strict=True))
        if at < len(order)
    ]
    return ScheduleError(f"the schedule deadlocks: {', '.join(stuck)}, each for an action that never comes")


class _Lockstep:
    """State of the list scheduling: what is done, and how far each rank has come in each kind."""

    def __init__(self, orders: Sequence[Order], chunks: int):
        self.orders, self.chunks, self.ranks = orders, chunks, range(len(orders))
        self.of_kind = {kind: [[a for a in order if a.kind is kind] for order in orders] for kind in Kind}
        self.position = {kind: [0] * len(orders) for kind in Kind}
        self.forwards_before = [_forwards_before(order) for order in orders]
        self.done: set[Action] = set()

    def run(self) -> tuple[Tick, ...]:
        ticks: list[Tick] = []
        total = sum(map(len, self.orders))
        while len(self.done) < total:
            tick = self._tick()
            if not any(tick):
                raise circle(self.orders, [self._first_left(rank) for rank in self.ranks])
            self.done.update(action for actions in tick for action in actions)
            ticks.append(tick)
        return tuple(ticks)

    def _tick(self) -> Tick:
        tick: list[list[Action]] = [[] for _ in self.ranks]
        for rank in self.ranks:
            self._take(rank, Kind.FORWARD, tick[rank])
            if self._forwards_suffice(rank):
                self._take(rank, Kind.BACKWARD, tick[rank])
        left = [rank for rank in self.ranks if self._next(rank, Kind.WEIGHT) is not None]
        if all(self._ready(rank, self._next(rank, Kind.WEIGHT), tick[rank]) for rank in left):
            for rank in left:
                self._take(rank, Kind.WEIGHT, tick[rank])
        return tuple(map(tuple, tick))

    def _next(self, rank: int, kind: Kind) -> Action | None:
        actions, at = self.of_kind[kind][rank], self.position[kind][rank]
        return actions[at] if at < len(actions) else None

    def _ready(self, rank: int, action: Action | None, same_tick: list[Action]) -> bool:
        """Whether all that `action` needs was done before this tick, or in it on its own rank and chunk."""
        if action is None:
            return False
        return all(
            need in self.done or (need in same_tick and need.chunk == action.chunk)
            for need in needs(action, self.chunks)
        )

    def _forwards_suffice(self, rank: int) -> bool:
        at = self.position[Kind.BACKWARD][rank]
        before = self.forwards_before[rank]
        return at < len(before) and self.position[Kind.FORWARD][rank] >= before[at]

    def _take(self, rank: int, kind: Kind, tick: list[Action]) -> None:
        action = self._next(rank, kind)
        if action is not None and self._ready(rank, action, tick):
            tick.append(action)
            self.position[kind][rank] += 1

    def _first_left(self, rank: int) -> int:
        order = self.orders[rank]
        return next((at for at, action in enumerate(order) if action not in self.done), len(order))


def _forwards_before(order: Order) -> list[int]:
    """For each B of a rank, in order: how many F stand before it."""
    counts, forwards = [], 0
    for action in order:
        forwards += action.kind is Kind.FORWARD
        if action.kind is Kind.BACKWARD:
            counts.append(forwards)
    return counts
