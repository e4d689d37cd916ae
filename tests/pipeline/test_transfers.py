"""What ranks send, and when it is used."""

from collections import Counter

from hypothesis import given, settings

from jaxpar.pipeline.schedules import Schedule
from jaxpar.pipeline.timing.simulate import simulate
from jaxpar.pipeline.transfers import receiver, user_of
from tests.pipeline.any_schedule import any_schedule


@settings(deadline=None, max_examples=60)
@given(any_schedule())
def test_everything_sent_is_used_later_and_a_link_carries_one_thing_of_a_kind_in_a_tick(schedule: Schedule):
    when = {action: t for t, tick in enumerate(schedule.ticks) for actions in tick for action in actions}
    links = Counter()
    for action, sent in when.items():
        target, user = receiver(action, schedule), user_of(action, schedule.chunks)
        if target is not None and user is not None:
            assert when[user] > sent and target == schedule.rank_of[user.chunk] != schedule.rank_of[action.chunk]
            links[sent, action.kind, schedule.rank_of[action.chunk], target] += 1
    assert links.total() == simulate(schedule).transfers
    assert max(links.values(), default=0) <= 1
