"""Uniform ticks: how many of which kind, what they keep of the orders, and ticks in which ranks branch."""

from collections import Counter

import pytest
from hypothesis import assume, given, settings

from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.lockstep import branching_ticks, lockstep_ticks
from jaxpar.pipeline.schedules import Kind, Schedule, make_schedule, parse_action
from jaxpar.pipeline.table import Tick, needs
from tests.pipeline.any_schedule import any_schedule
from tests.sentences import refused

F, B, W = Kind


def signature(schedule: Schedule) -> str:
    """Runs of like ticks, as in `3F 8FB 3B`."""
    return " ".join(
        f"{len(ticks)}{''.join(kind.value for kind in Kind if kind in kinds)}" for kinds, ticks in schedule.runs()
    )


def kind_ticks(ticks: tuple[Tick, ...]) -> Counter[Kind]:
    """Ticks in which any rank has an action of a kind."""
    return Counter(kind for tick in ticks for kind in {action.kind for rank in tick for action in rank})


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (4, 8), (4, 2), (3, 7)])
def test_1f1b_has_warm_up_ticks_of_f_then_one_tick_for_each_microbatch_then_ticks_of_b(p: int, m: int):
    wanted = f"{p - 1}F {m}FB {p - 1}B" if p > 1 else f"{m}FB"
    assert signature(make_schedule("1f1b", ranks=p, microbatches=m)) == wanted


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 12, 3), (3, 3, 4)])
def test_interleaved_has_vp_minus_1_ticks_at_either_end(p: int, m: int, v: int):
    schedule = make_schedule("interleaved", ranks=p, microbatches=m, virtual_stages=v)
    assert signature(schedule) == f"{v * p - 1}F {m * v + p - v * p}FB {v * p - 1}B"


def test_gpipe_stays_gpipe_no_b_before_the_last_f_of_its_rank():
    assert signature(make_schedule("gpipe", ranks=4, microbatches=8)) == "10F 1FB 10B"


def test_zero_bubble_ticks_come_in_few_runs():
    """Each run is a loop that has to be compiled."""
    assert signature(make_schedule("zb-uniform", ranks=4, microbatches=8)) == "3F 3FB 5FBW 3BW"
    assert signature(make_schedule("zb-h1", ranks=4, microbatches=8)) == "3F 3FB 5FBW 3BW"
    assert signature(make_schedule("v-half", ranks=4, microbatches=8)) == "7F 3FB 9FBW 3FB 7BW"
    for name in ("zb-v", "dualpipe-v", "v-half"):
        assert len(list(make_schedule(name, ranks=8, microbatches=24).runs())) == 5


@settings(deadline=None, max_examples=60)
@given(any_schedule())
def test_what_is_made_in_a_tick_is_used_by_others_in_a_later_one(schedule: Schedule):
    when = {action: t for t, tick in enumerate(schedule.ticks) for rank in tick for action in rank}
    for action, t in when.items():
        for need in needs(action, schedule.chunks):
            assert when[need] < t or (when[need] == t and need.chunk == action.chunk)


@settings(deadline=None, max_examples=60)
@given(any_schedule())
def test_ticks_with_w_are_as_few_as_the_w_of_a_rank(schedule: Schedule):
    if schedule.splits_backward:
        assert kind_ticks(schedule.ticks)[W] == schedule.microbatches * schedule.virtual_stages


@settings(deadline=None, max_examples=60)
@given(any_schedule())
def test_each_kind_keeps_the_order_that_was_published(schedule: Schedule):
    assume(schedule.name != "v-half")  # its ticks are its own: see v_half_ticks
    for rank, order in enumerate(schedule.orders):
        for kind in (F, B, W):
            ticked = [action for tick in schedule.ticks for action in tick[rank] if action.kind is kind]
            assert ticked == [action for action in order if action.kind is kind]


@settings(deadline=None, max_examples=40)
@given(any_schedule())
def test_branching_ticks_have_one_action_a_rank_in_its_published_order(schedule: Schedule):
    ticks = branching_ticks(schedule.orders, schedule.chunks)
    assert all(len(actions) <= 1 for tick in ticks for actions in tick)
    for rank, order in enumerate(schedule.orders):
        assert tuple(action for tick in ticks for action in tick[rank]) == order


def test_branching_lets_zb_h1_fill_its_bubble_where_uniform_ticks_cannot():
    schedule = make_schedule("zb-h1", ranks=4, microbatches=8)
    assert len(branching_ticks(schedule.orders, schedule.chunks)) == 3 * 8 + 3
    assert sum(kind_ticks(schedule.ticks).values()) == 3 * 8 + 6


def test_orders_that_wait_for_each_other_deadlock_and_ranks_are_named():
    orders = [tuple(map(parse_action, row.split())) for row in ("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0")]
    with refused("deadlocks", "rank 0 waits with 0B0", "rank 1 waits with 1F1", error=ScheduleError):
        branching_ticks(orders, chunks=2)


def test_a_chunk_before_the_one_that_it_needs_deadlocks_in_uniform_ticks_too():
    orders = [tuple(map(parse_action, ["1F0", "0F0", "1B0", "0B0"]))]
    with refused("deadlocks", "rank 0 waits with 1F0", error=ScheduleError):
        lockstep_ticks(orders, chunks=2)
