"""Uniform ticks: how many of which kind, what they keep of the orders, and ticks in which ranks branch."""

from collections import Counter

import pytest
from hypothesis import assume, given, settings

from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.lockstep import branching_ticks, lockstep_ticks
from jaxpar.pipeline.schedules import Kind, Schedule, make_schedule, parse_action
from jaxpar.pipeline.table import Tick
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


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "ticks"),
    [
        # p - 1 ticks of F, one for each microbatch, and p - 1 of B; of interleaved vp - 1 at either end.
        ("one-stage", 1, 4, 1, "4FB"), ("1f1b", 1, 3, 1, "3FB"), ("1f1b", 2, 2, 1, "1F 2FB 1B"),
        ("1f1b", 4, 8, 1, "3F 8FB 3B"), ("1f1b", 4, 2, 1, "3F 2FB 3B"), ("1f1b", 3, 7, 1, "2F 7FB 2B"),
        ("interleaved", 2, 4, 2, "3F 6FB 3B"), ("interleaved", 4, 8, 2, "7F 12FB 7B"),
        ("interleaved", 4, 12, 3, "11F 28FB 11B"), ("interleaved", 3, 3, 4, "11F 3FB 11B"),
        # GPipe stays GPipe: no B before the last F of its rank.
        ("gpipe", 4, 8, 1, "10F 1FB 10B"),
        ("zb-uniform", 4, 8, 1, "3F 3FB 5FBW 3BW"), ("zb-h1", 4, 8, 1, "3F 3FB 5FBW 3BW"),
        ("v-half", 4, 8, 2, "7F 3FB 9FBW 3FB 7BW"),
    ],
)  # fmt: skip
def test_ticks_come_in_these_runs(name: str, p: int, m: int, v: int, ticks: str):
    """Each run is a loop that has to be compiled."""
    assert signature(make_schedule(name, ranks=p, microbatches=m, virtual_stages=v)) == ticks


@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v", "v-half"])
def test_ticks_of_a_v_come_in_five_runs(name: str):
    assert len(list(make_schedule(name, ranks=8, microbatches=24).runs())) == 5


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
