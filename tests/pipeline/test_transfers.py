"""What ranks send, and when it is used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings

from jaxpar.pipeline.schedules import Action, Kind, Schedule, make_schedule
from jaxpar.pipeline.timing.simulate import simulate
from jaxpar.pipeline.transfers import receiver, user_of
from tests.pipeline.any_schedule import any_schedule


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


def lockstep_transfers(schedule: Schedule) -> tuple[Transfer, ...]:
    """All transfers of the schedule's ticks, by the tick in which they are sent."""
    when = {action: t for t, tick in enumerate(schedule.ticks) for actions in tick for action in actions}
    found = []
    for action, sent in when.items():
        target, user = receiver(action, schedule), user_of(action, schedule.chunks)
        if target is not None and user is not None:
            found.append(Transfer(action, schedule.rank_of[action.chunk], target, sent, when[user]))
    return tuple(found)


def test_1f1b_uses_what_it_receives_in_the_next_tick():
    transfers = lockstep_transfers(make_schedule("1f1b", ranks=3, microbatches=4))
    assert len(transfers) == 2 * 2 * 4
    assert all(t.used == t.sent + 1 for t in transfers)
    assert {(t.source, t.target) for t in transfers if t.action.kind is Kind.FORWARD} == {(0, 1), (1, 2)}


def test_interleaved_sends_from_the_last_rank_to_the_first():
    transfers = lockstep_transfers(make_schedule("interleaved", ranks=3, microbatches=3, virtual_stages=2))
    assert {(t.source, t.target) for t in transfers if t.action.chunk == 2 and t.action.kind is Kind.FORWARD} == {
        (2, 0)
    }


@settings(deadline=None, max_examples=60)
@given(any_schedule())
def test_everything_sent_is_used_later_and_a_link_carries_one_thing_of_a_kind_in_a_tick(schedule: Schedule):
    transfers = lockstep_transfers(schedule)
    assert len(transfers) == simulate(schedule).transfers
    assert all(t.used > t.sent and t.source != t.target for t in transfers)
    links = Counter((t.sent, t.source, t.target, t.action.kind) for t in transfers)
    assert max(links.values(), default=0) <= 1
