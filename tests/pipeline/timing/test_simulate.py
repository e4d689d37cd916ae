"""Simulated time: dependencies, transfers, uneven chunks and the head, in each of the three modes."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.pipeline.actions import Action
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules import Kind, Schedule, make_schedule
from jaxpar.pipeline.table import needs
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.in_flight import ChunkBytes
from jaxpar.pipeline.timing.simulate import Simulation, simulate
from tests.pipeline.any_schedule import any_schedule
from tests.sentences import refused

F, B, W = Kind
MODES = ("async", "lockstep", "branching")


@st.composite
def uneven(draw: st.DrawFn, schedule: Schedule) -> Durations:
    """Whole numbers for each chunk, a head, and transfers that overlap or do not."""
    times = st.lists(st.integers(1, 5), min_size=schedule.chunks, max_size=schedule.chunks)
    weight = draw(times)
    backward = [b + w for b, w in zip(draw(times), weight, strict=True)]
    head, transfer = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    return Durations(draw(times), backward, weight, head, transfer, overlap=draw(st.booleans()))


def longest_path(schedule: Schedule, durations: Durations) -> float:
    """The makespan of `async` as the longest path through needs and orders, without a clock."""
    previous = {b: a for order in schedule.orders for a, b in pairwise(order)}
    ends: dict[Action, float] = {}

    def sends(action: Action) -> bool:
        step = {F: 1, B: -1, W: 0}[action.kind]
        to = action.chunk + step
        return bool(step) and 0 <= to < schedule.chunks and schedule.rank_of[to] != schedule.rank_of[action.chunk]

    def end(action: Action) -> float:
        if action not in ends:
            rank = schedule.rank_of[action.chunk]
            starts: list[float] = [0]
            for need in needs(action, schedule.chunks):
                away = schedule.rank_of[need.chunk] != rank
                starts.append(end(need) + (durations.transfer if away else 0))
            if action in previous:
                before = previous[action]
                starts.append(end(before) + (0 if durations.overlap or not sends(before) else durations.transfer))
            ends[action] = max(starts) + durations.duration(action, schedule)
        return ends[action]

    last = [(order[-1], end(order[-1])) for order in schedule.orders]
    return max(t + (0 if durations.overlap or not sends(a) else durations.transfer) for a, t in last)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_async_is_the_longest_path_through_what_actions_need_and_the_order_of_ranks(data: st.DataObject):
    schedule = data.draw(any_schedule(most_ranks=4, most_microbatches=8))
    times = data.draw(uneven(schedule))
    assert simulate(schedule, times).makespan == longest_path(schedule, times)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_in_every_mode_ranks_do_one_thing_at_a_time_and_nothing_before_what_it_needs(data: st.DataObject):
    schedule = data.draw(any_schedule(most_ranks=4, most_microbatches=8))
    times = data.draw(uneven(schedule))
    for mode in MODES:
        simulation = simulate(schedule, times, mode=mode)
        ended = {event.action: event for event in simulation.timeline}
        assert len(ended) == len(simulation.timeline) == sum(map(len, schedule.orders))
        for event in simulation.timeline:
            for need in needs(event.action, schedule.chunks):
                travels = schedule.rank_of[need.chunk] != event.rank
                assert event.start >= ended[need].end + (times.transfer if travels else 0)
        for rank in range(schedule.ranks):
            mine = sorted((e for e in simulation.timeline if e.rank == rank), key=lambda e: e.start)
            assert all(a.end <= b.start for a, b in pairwise(mine))
        assert simulation.makespan >= max(event.end for event in simulation.timeline)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_program_of_ticks_is_never_faster_than_its_own_order_without_ticks(data: st.DataObject):
    """v-half keeps another order in its ticks, and may go faster there."""
    schedule = data.draw(any_schedule(most_ranks=4, most_microbatches=8))
    times = Durations(data.draw(st.integers(1, 4)), 4, 2)
    free = simulate(schedule, times).makespan
    assert simulate(schedule, times, mode="branching").makespan >= free
    if schedule.name in ("gpipe", "1f1b", "interleaved", "breadth-first", "zb-uniform"):
        assert simulate(schedule, times, mode="lockstep").makespan >= free


def two_ranks(durations: Durations, mode: str = "async") -> Simulation:
    return simulate(make_schedule("1f1b", ranks=2, microbatches=2), durations, mode=mode)  # pyright: ignore


def test_the_head_lengthens_b_of_the_last_chunk():
    assert two_ranks(Durations(1, 2)).makespan == 9
    assert two_ranks(Durations(1, 2, head=4)).makespan == 9 + 2 * 4
    # F, then F and B with the head twice, then B: only ticks with B of the last chunk have the head.
    assert two_ranks(Durations(1, 2, head=4), "lockstep").makespan == 1 + 2 * (1 + 2 + 4) + 2


def test_uniform_ticks_are_padded_to_the_longest_chunk():
    assert two_ranks(Durations([1, 3], [2, 6]), "lockstep").makespan == 3 * (3 + 6)
    assert two_ranks(Durations([1, 3], [2, 6])).makespan == 1 + 2 * (3 + 6) + 2
    assert two_ranks(Durations([1, 3], [2, 6])).ideal == (2 * 3 + 2 * 9) / 2


def test_transfers_are_hidden_in_uniform_ticks_only_behind_what_comes_after_them_in_the_tick():
    # Ticks F, FB, FB, B: F sends in the first three, B in the second and third and not at the end of the model.
    apart = two_ranks(Durations(1, 2, transfer=Fraction(1, 2), overlap=False), "lockstep")
    assert apart.makespan == 9 + Fraction(1, 2) * (2 + 2)
    hidden = two_ranks(Durations(1, 2, transfer=Fraction(1, 2)), "lockstep")
    # F of the first tick has nothing after it; B of rank 1 in ticks 1 and 2 has nothing after it either.
    assert hidden.makespan == 9 + Fraction(1, 2) * 3


def test_sending_keeps_a_rank_busy_where_transfers_do_not_overlap():
    schedule = make_schedule("gpipe", ranks=2, microbatches=3)
    overlapped = simulate(schedule, Durations(2, 2, transfer=1))
    apart = simulate(schedule, Durations(2, 2, transfer=1, overlap=False))
    assert overlapped.makespan == (3 + 1) * 4 + 2 * 1
    # Three times F and sending; F of the last microbatch on rank 1; three times B and sending; B on rank 0.
    assert apart.makespan == 3 * (2 + 1) + 2 + 3 * (2 + 1) + 2


def test_branching_ticks_last_as_long_as_their_longest_action():
    """Rank 0 does F F . B F B . B, and rank 1 . F B F B F B: every tick but the first two has a B."""
    schedule = make_schedule("1f1b", ranks=2, microbatches=3)
    assert simulate(schedule, Durations(1, 1), mode="branching").makespan == 8
    assert simulate(schedule, Durations(1, 3), mode="branching").makespan == 2 * 1 + 6 * 3


def test_transfers_count_what_crosses_ranks_and_not_the_turn_of_a_v():
    loop = simulate(make_schedule("interleaved", ranks=2, microbatches=4, virtual_stages=2), sizes=ChunkBytes(sent=10))
    assert loop.transfers_of == (4 * 3, 4 * 3)  # three cuts between four chunks, forward and backward
    assert loop.bytes_sent == (120, 120)
    v = simulate(make_schedule("zb-v", ranks=2, microbatches=4))
    assert (v.transfers, v.transfers_of) == (4 * 2 * 2, (8, 8))
    assert simulate(make_schedule("breadth-first", ranks=1, microbatches=4, virtual_stages=3)).transfers == 0


def test_fractions_stay_exact():
    third = Fraction(1, 3)
    simulation = simulate(make_schedule("1f1b", ranks=4, microbatches=4), Durations(third, 2 * third, third))
    assert simulation.makespan == 7
    assert simulation.bubble_fraction == Fraction(3, 4)


@pytest.mark.parametrize(
    ("durations", "parts"),
    [
        (Durations(forward=[1, 2, 3]), ("forward", "3 entries", "2 chunks", "zb-h1")),
        (Durations(backward=1, weight=2), ("weight", "backward", "got 2 of 1", "chunk 0")),
        (Durations(forward=-1), ("forward", "negative", "got -1")),
        (Durations(transfer=-0.5), ("transfer", "negative", "got -0.5")),
    ],
)
def test_durations_that_do_not_fit_are_refused(durations: Durations, parts: tuple[str, ...]):
    with refused(*parts, error=ScheduleError):
        simulate(make_schedule("zb-h1", ranks=2, microbatches=2), durations)


def test_sizes_and_modes_that_do_not_fit_are_refused():
    schedule = make_schedule("1f1b", ranks=2, microbatches=2)
    with refused("stash", "1 entry for", "2 chunks", error=ScheduleError):
        simulate(schedule, sizes=ChunkBytes(stash=[1]))
    with refused("'sync'", "async, lockstep, branching", error=ScheduleError):
        simulate(schedule, mode="sync")  # pyright: ignore
