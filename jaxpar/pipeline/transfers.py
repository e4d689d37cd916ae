"""The transfers between ranks, and their ticks."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.table import Schedule


@dataclass(frozen=True)
class Transfer:
    """An activation (made by F) or its gradient (made by B) on its way to the rank of the next chunk."""

    action: Action
    """The action that made it."""
    source: int
    """The rank that sends."""
    target: int
    """The rank that receives."""
    sent: int
    """The tick at whose end it is sent."""
    used: int
    """The tick in which the receiver uses it: it has to be kept there from `sent + 1` on."""


def user_of(action: Action, chunks: int) -> Action | None:
    """The action on another chunk that uses what `action` makes; None for W and at both ends of the model."""
    step = {Kind.FORWARD: 1, Kind.BACKWARD: -1}.get(action.kind)
    if step is None or not 0 <= action.chunk + step < chunks:
        return None
    return Action(action.kind, action.microbatch, action.chunk + step)


def receiver(action: Action, schedule: Schedule) -> int | None:
    """The rank that `action` sends to; None where it sends nothing, or the next chunk is on the same rank."""
    user = user_of(action, schedule.chunks)
    if user is None or schedule.rank_of[user.chunk] == schedule.rank_of[action.chunk]:
        return None
    return schedule.rank_of[user.chunk]


def lockstep_transfers(schedule: Schedule) -> tuple[Transfer, ...]:
    """All transfers of the schedule's ticks, by the tick in which they are sent."""
    when = {action: t for t, tick in enumerate(schedule.ticks) for actions in tick for action in actions}
    found = []
    for action, sent in when.items():
        target, user = receiver(action, schedule), user_of(action, schedule.chunks)
        if target is not None and user is not None:
            found.append(Transfer(action, schedule.rank_of[action.chunk], target, sent, when[user]))
    return tuple(found)
