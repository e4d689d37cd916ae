"""Start and end of each action of a schedule, in each of the three modes."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.lockstep import branching_ticks, circle
from jaxpar.pipeline.table import Schedule, Tick, kinds_in, needs
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.per_chunk import Number
from jaxpar.pipeline.transfers import receiver


@dataclass(frozen=True)
class Event:
    """An action and when its rank was busy with it."""

    rank: int
    action: Action
    start: Number
    end: Number


type Timeline = tuple[tuple[Event, ...], Number]
"""Events in the order in which ranks start them, and the time at which all are over."""


def async_timeline(schedule: Schedule, durations: Durations) -> Timeline:
    """Start each action as soon as its rank is free and its inputs have arrived.

    Raises ScheduleError if ranks wait for each other in a cycle.
    """
    position = [0] * schedule.ranks
    free: list[Number] = [0] * schedule.ranks
    ended: dict[Action, Number] = {}
    events: list[Event] = []
    waiting = list(range(schedule.ranks))
    while waiting:
        moved = False
        for rank in waiting:
            order = schedule.orders[rank]
            while position[rank] < len(order):
                action = order[position[rank]]
                before = needs(action, schedule.chunks)
                if not all(need in ended for need in before):
                    break
                arrivals = [_arrival(need, rank, ended[need], schedule, durations) for need in before]
                start = max([free[rank], *arrivals])
                end = ended[action] = start + durations.duration(action, schedule)
                sends = receiver(action, schedule) is not None
                free[rank] = end if durations.overlap or not sends else end + durations.transfer
                events.append(Event(rank, action, start, end))
                position[rank] += 1
                moved = True
        if not moved:
            raise circle(schedule.orders, position)
        waiting = [rank for rank in waiting if position[rank] < len(schedule.orders[rank])]
    events.sort(key=lambda event: (event.start, event.rank))
    return tuple(events), max(free)


def _arrival(need: Action, rank: int, end: Number, schedule: Schedule, durations: Durations) -> Number:
    return end if schedule.rank_of[need.chunk] == rank else end + durations.transfer


def lockstep_timeline(schedule: Schedule, durations: Durations) -> Timeline:
    """Run the schedule's ticks on all ranks together.

    In each tick come F, B and W for which any rank has an action, each as long as the longest chunk of the model: one
    program pads to it. B of the last chunk includes the head. What F sends must have arrived when the tick ends: where
    transfers overlap, B and W of the same tick hide it; what B sends is hidden by W alone.
    """
    events: list[Event] = []
    now: Number = 0
    for tick in schedule.ticks:
        now = _tick_in_phases(tick, now, schedule, durations, events)
    return tuple(events), now


def _tick_in_phases(tick: Tick, now: Number, schedule: Schedule, durations: Durations, events: list[Event]) -> Number:
    """Adds the events of a tick that starts `now`, and returns when it ends."""
    arrived = now
    present = kinds_in(tick)
    for kind in (kind for kind in Kind if kind in present):
        actions = [(rank, a) for rank, actions in enumerate(tick) for a in actions if a.kind is kind]
        events.extend(Event(rank, a, now, now + durations.duration(a, schedule)) for rank, a in actions)
        now += durations.longest(kind, schedule) + max(durations.head_of(a, schedule) for _, a in actions)
        if any(receiver(a, schedule) is not None for _, a in actions):
            arrived = now + durations.transfer
            now = now if durations.overlap else arrived
    return max(now, arrived)


def branching_timeline(schedule: Schedule, durations: Durations) -> Timeline:
    """Run ticks on all ranks together, each with at most one action per rank, in its published order.

    A tick lasts as long as the longest action in it, padded to the longest chunk of its kind. Ranks send at its end:
    where transfers overlap, those with shorter actions send while others still compute.
    """
    events: list[Event] = []
    now: Number = 0
    for tick in branching_ticks(schedule.orders, schedule.chunks):
        computed = arrived = now
        for rank, action in ((rank, action) for rank, actions in enumerate(tick) for action in actions):
            events.append(Event(rank, action, now, now + durations.duration(action, schedule)))
            end = now + durations.longest(action.kind, schedule) + durations.head_of(action, schedule)
            computed = max(computed, end)
            if receiver(action, schedule) is not None:
                arrived = max(arrived, end + durations.transfer)
        sends = arrived > now
        now = max(computed, arrived) if durations.overlap or not sends else computed + durations.transfer
    return tuple(events), now
