"""The transfers between ranks, and their ticks."""

from __future__ import annotations

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.table import Schedule


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
