"""Conversion of each rank's order of actions to ticks that all ranks share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.table import Order, Tick, needs


def lockstep_ticks(orders: Sequence[Order], chunks: int) -> tuple[Tick, ...]:
    """The ticks of a program that is the same on every rank: each tick is at most one F, then one B, then one W.

    What a rank makes in a tick, others can use from the next tick on; within its rank and tick, B can use what F made
    and W what B made. Each kind keeps the order that it has in `orders`. A B waits for all F before it in its order (so
    GPipe stays GPipe); F runs ahead of B, for a tick in which only other ranks go forward takes as long as one in
    which all do. W of all ranks run in the same ticks (`with_weights`), which are then as few as there are W on a rank.

    Raises ScheduleError where the orders wait for each other in a circle.
    """
    return with_weights(_Lockstep(orders, chunks).run(), _actions_of_kind(orders, Kind.WEIGHT))


def branching_ticks(orders: Sequence[Order], chunks: int) -> tuple[Tick, ...]:
    """The ticks of a program in which ranks do different things: each tick is at most one action of any kind.

    Every rank keeps its published order. What a rank makes in a tick can be used from the next tick on.
    Raises ScheduleError where the orders wait for each other in a circle.
    """
    ticks, position = _one_by_one(orders, chunks)
    if any(at < len(order) for order, at in zip(orders, position, strict=True)):
        raise circle(orders, position)
    return tuple(ticks)


def deadlock_positions(orders: Sequence[Order], chunks: int) -> list[int]:
    """Position in each rank's order at which it blocks forever; the length of the order if it does not."""
    return _one_by_one(orders, chunks)[1]


def circle(orders: Sequence[Order], position: Sequence[int]) -> ScheduleError:
    """The error of orders in which every rank waits; `position[rank]` is its first action that cannot start."""
    stuck = [
        f"rank {rank} waits with {order[at]}"
        for rank, (order, at) in enumerate(zip(orders, position, strict=True))
        if at < len(order)
    ]
    return ScheduleError(f"the schedule deadlocks: {', '.join(stuck)}, each for an action that never comes")


def _one_by_one(orders: Sequence[Order], chunks: int) -> tuple[list[Tick], list[int]]:
    """Ticks of at most one action a rank, and how far each rank came."""
    done: set[Action] = set()
    position = [0] * len(orders)
    ticks: list[Tick] = []
    while True:
        tick: list[tuple[Action, ...]] = []
        for rank, order in enumerate(orders):
            ready = position[rank] < len(order) and done.issuperset(needs(order[position[rank]], chunks))
            tick.append((order[position[rank]],) if ready else ())
            position[rank] += ready
        if not any(tick):
            return ticks, position
        done.update(action for actions in tick for action in actions)
        ticks.append(tuple(tick))


class _Lockstep:
    """State of the list scheduling of F and B: what is done, and how far each rank came in each kind.

    A pair of microbatch and chunk is one number here, since a search makes tables of tens of thousands of actions.
    """

    def __init__(self, orders: Sequence[Order], chunks: int):
        self.orders, self.chunks = orders, chunks
        self.forwards, self.backwards = _actions_of_kind(orders, Kind.FORWARD), _actions_of_kind(orders, Kind.BACKWARD)
        self.forwards_before = [_forwards_before(order) for order in orders]
        self.forward_at, self.backward_at = [0] * len(orders), [0] * len(orders)
        self.forwarded: set[int] = set()
        self.backwarded: set[int] = set()

    def run(self) -> list[Tick]:
        ticks: list[Tick] = []
        total = sum(map(len, (*self.forwards, *self.backwards)))
        while len(self.forwarded) + len(self.backwarded) < total:
            each = [self._actions(rank) for rank in range(len(self.orders))]
            tick = tuple(tuple(action for action in pair if action is not None) for pair in each)
            if not any(tick):
                raise circle(self.orders, [self._first_left(order) for order in self.orders])
            self.forwarded.update(self._step_of(forward) for forward, _ in each if forward is not None)
            self.backwarded.update(self._step_of(backward) for _, backward in each if backward is not None)
            ticks.append(tick)
        return ticks

    def _actions(self, rank: int) -> tuple[Action | None, Action | None]:
        """The F and the B that a rank can do in the next tick, given what all have done before it; B can use this F."""
        made = forward = backward = None
        at, order = self.forward_at[rank], self.forwards[rank]
        if at < len(order) and (order[at].chunk == 0 or self._step_of(order[at]) - 1 in self.forwarded):
            forward = order[at]
            made = self._step_of(forward)
            self.forward_at[rank] = at = at + 1
        next_backward, order = self.backward_at[rank], self.backwards[rank]
        if next_backward < len(order) and at >= self.forwards_before[rank][next_backward]:
            step = self._step_of(order[next_backward])
            last = order[next_backward].chunk == self.chunks - 1
            if (step == made or step in self.forwarded) and (last or step + 1 in self.backwarded):
                backward = order[next_backward]
                self.backward_at[rank] += 1
        return forward, backward

    def _step_of(self, action: Action) -> int:
        return action.microbatch * self.chunks + action.chunk

    def _first_left(self, order: Order) -> int:
        """Position of the first F or B that is not done; the length of the order where all are."""
        done = {Kind.FORWARD: self.forwarded, Kind.BACKWARD: self.backwarded}
        left = (at for at, one in enumerate(order) if one.kind in done and self._step_of(one) not in done[one.kind])
        return next(left, len(order))


def with_weights(ticks: Sequence[Tick], weights: Sequence[Sequence[Action]]) -> tuple[Tick, ...]:
    """Ticks of F and B with W added: the k-th W of every rank in the first tick in which all ranks can do theirs.

    After the last forward of a rank, W wait until they can run tick after tick: fewer and fewer chunks are in flight,
    so no slots are needed for this, and a program has one more loop with W instead of many.
    `weights[rank]` are the W of a rank in their order.
    """
    if not any(weights):
        return tuple(ticks)
    when = {action: t for t, tick in enumerate(ticks) for actions in tick for action in actions}
    forwards = [
        [when[a] for tick in ticks for a in tick[rank] if a.kind is Kind.FORWARD] for rank in range(len(weights))
    ]
    first_over = min(map(max, forwards))
    together = list(zip_longest(*weights))
    times: list[int] = []
    for actions in together:
        ready = max(when[Action(Kind.BACKWARD, w.microbatch, w.chunk)] for w in actions if w is not None)
        times.append(max([ready, *(t + 1 for t in times[-1:])]))
    for k in reversed(range(len(times) - 1)):
        if times[k] > first_over:
            times[k] = times[k + 1] - 1
    length = max([len(ticks), *(t + 1 for t in times[-1:])])
    table = [list(tick) for tick in ticks] + [[()] * len(weights) for _ in range(len(ticks), length)]
    for t, actions in zip(times, together, strict=True):
        for rank, w in enumerate(actions):
            table[t][rank] += () if w is None else (w,)
    return tuple(map(tuple, table))


def _actions_of_kind(orders: Sequence[Order], kind: Kind) -> list[list[Action]]:
    return [[action for action in order if action.kind is kind] for order in orders]


def _forwards_before(order: Order) -> list[int]:
    """The number of F before each B of a rank, in order."""
    forwards_before, forwards = [], 0
    for action in order:
        forwards += action.kind is Kind.FORWARD
        if action.kind is Kind.BACKWARD:
            forwards_before.append(forwards)
    return forwards_before
