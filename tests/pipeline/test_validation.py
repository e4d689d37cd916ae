"""What is no schedule is refused, with a grid in which the faulty cell is marked."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.pipeline.actions import Action
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules import Kind, Schedule, make_schedule, parse_action
from jaxpar.pipeline.validation import validate
from tests.pipeline.any_schedule import any_schedule
from tests.sentences import refused

SMALL = make_schedule("1f1b", ranks=2, microbatches=2)
"""0F0 0F1 0B0 0B1 / 1F0 1B0 1F1 1B1"""


def with_orders(*rows: str) -> Schedule:
    return replace(SMALL, orders=tuple(tuple(map(parse_action, row.split())) for row in rows))


def with_ticks(*ticks: tuple[str, str]) -> Schedule:
    return replace(SMALL, ticks=tuple(tuple(tuple(map(parse_action, cell.split())) for cell in t) for t in ticks))


def test_the_error_draws_the_grid_and_marks_the_cell():
    with pytest.raises(ScheduleError) as error:
        validate(with_orders("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B0"))
    assert str(error.value).splitlines() == [
        "1f1b: 1B0 (rank 1, place 3) comes twice",
        "       | 0   1   2   3",
        "rank 0 | 0F0 0F1 0B0 0B1",
        "rank 1 | 1F0 1B0 1F1 >1B0<",
    ]


def test_a_long_grid_is_shown_around_the_cell():
    schedule = make_schedule("1f1b", ranks=2, microbatches=30)
    orders = (schedule.orders[0], (*schedule.orders[1][:40], *schedule.orders[1][41:]))
    with refused("1f1b", "1F20", "missing", "rank 1", error=ScheduleError, grid=True) as error:
        validate(replace(schedule, orders=orders))
    assert str(error.value).splitlines()[1].split() == ["|", *map(str, range(53, 60))]


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (("0F0 0F1 0B0 0B1", "1F0 1B0 1F1"), ("1B1 is missing", "rank 1")),
        (("0F0 0F1 0B0 0B1 1B1", "1F0 1B0 1F1"), ("1B1 (rank 0, place 4)", "wrong rank", "chunk 1 is on rank 1")),
        (("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1 1F2"), ("1F2", "not in this schedule", "microbatches 0 to 1", "no W")),
        (("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1 1W1"), ("1W1", "not in this schedule")),
        (("0F0 0F1 0B0 0B1", "1B0 1F0 1F1 1B1"), ("1B0", "never starts", "needs 1F0", "later in its own order")),
        (("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"), ("0B0", "needs 1B0", "on rank 1", "which waits too")),
    ],
)
def test_faults_of_orders_are_named(rows: tuple[str, ...], parts: tuple[str, ...]):
    with refused(*parts, error=ScheduleError, grid=True):
        validate(with_orders(*rows))


@pytest.mark.parametrize(
    ("ticks", "parts"),
    [
        ([("0F0", "1F0 1B0"), ("0F1", "1F1 1B1"), ("0B0", ""), ("0B1", "")], ("1F0", "needs 0F0", "in tick 0")),
        ([("0F0 0F1", ""), ("", "1F0 1B0"), ("0B0", "1F1 1B1"), ("0B1", "")], ("more than one F, B or W",)),
        ([("0F0", ""), ("0F1", "1B0 1F0"), ("0B0", "1F1 1B1"), ("0B1", "")], ("or not in this order",)),
        ([("0F0", ""), ("0F1", "1F0 1B0"), ("0B0", "1F1 1B1")], ("0B1 is missing", "rank 0")),
    ],
)
def test_faults_of_ticks_are_named(ticks: list[tuple[str, str]], parts: tuple[str, ...]):
    with refused(*parts, error=ScheduleError, grid=True):
        validate(with_ticks(*ticks))


def test_more_chunks_in_flight_than_allowed_are_refused_where_the_limit_is_passed():
    schedule = make_schedule("1f1b", ranks=3, microbatches=6)
    validate(schedule, in_flight=3, lockstep_in_flight=5)
    with refused("0F2 (rank 0, place 2)", "chunk 3 in flight", "limit of 2", error=ScheduleError, grid=True):
        validate(schedule, in_flight=2)
    with refused("0F4 (rank 0, tick 4)", "chunk 5 in flight", "limit of 4", error=ScheduleError, grid=True):
        validate(schedule, lockstep_in_flight=4)


def test_a_rank_sends_to_its_neighbours_only():
    orders = [f"{c}F0 {c}B0" for c in (0, 2, 1, 3)]
    rows = tuple(tuple(map(parse_action, row.split())) for row in orders)
    schedule = replace(make_schedule("gpipe", ranks=4, microbatches=1), rank_of=(0, 2, 1, 3), orders=rows)
    with refused("0F0 (rank 0, place 0)", "rank 2", "not a neighbour of rank 0", error=ScheduleError, grid=True):
        validate(schedule)


def test_ranks_must_have_as_many_chunks_as_the_schedule_states():
    with refused("rank 0", "2 of the 2 chunks", "expected 1", error=ScheduleError):
        validate(replace(SMALL, rank_of=(0, 0)))


type Row = tuple[Action, ...]
CHANGES: dict[str, Callable[[Row, int], Row]] = {
    "dropped": lambda row, at: (*row[:at], *row[at + 1 :]),
    "doubled": lambda row, at: (*row[: at + 1], *row[at:]),
    "of another": lambda row, at: (*row[:at], replace(row[at], microbatch=row[at].microbatch + 1), *row[at + 1 :]),
    "of another chunk": lambda row, at: (*row[:at], replace(row[at], chunk=row[at].chunk + 1), *row[at + 1 :]),
}


@settings(deadline=None, max_examples=60)
@given(any_schedule(most_ranks=4, most_microbatches=8), st.data())
def test_any_action_that_is_dropped_doubled_or_changed_is_noticed(schedule: Schedule, data: st.DataObject):
    change = CHANGES[data.draw(st.sampled_from(sorted(CHANGES)))]
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    at = data.draw(st.integers(0, len(schedule.orders[rank]) - 1))
    orders = [change(order, at) if r == rank else order for r, order in enumerate(schedule.orders)]
    with pytest.raises(ScheduleError):
        validate(replace(schedule, orders=tuple(orders)))
    cells = [(t, r) for t, tick in enumerate(schedule.ticks) for r, actions in enumerate(tick) if actions]
    t, rank = data.draw(st.sampled_from(cells))
    changed = change(schedule.ticks[t][rank], 0)
    tick = tuple(changed if r == rank else actions for r, actions in enumerate(schedule.ticks[t]))
    with pytest.raises(ScheduleError):
        validate(replace(schedule, ticks=(*schedule.ticks[:t], tick, *schedule.ticks[t + 1 :])))


@settings(deadline=None, max_examples=60)
@given(any_schedule(most_ranks=4, most_microbatches=8), st.data())
def test_a_backward_before_its_forward_is_noticed(schedule: Schedule, data: st.DataObject):
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    order = list(schedule.orders[rank])
    backward = data.draw(st.sampled_from([a for a in order if a.kind is Kind.BACKWARD]))
    forward = replace(backward, kind=Kind.FORWARD)
    i, j = order.index(forward), order.index(backward)
    order[i], order[j] = order[j], order[i]
    orders = [tuple(order) if r == rank else row for r, row in enumerate(schedule.orders)]
    with pytest.raises(ScheduleError, match="deadlock"):
        validate(replace(schedule, orders=tuple(orders)))
