"""What the executor reads: each action finds what it needs where its row says, and slots are as few as can be."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.execution.make_program import make_program
from jaxpar.pipeline.execution.program import NOTHING, PipelineProgram
from jaxpar.pipeline.lockstep import lockstep_ticks
from jaxpar.pipeline.schedules import SCHEDULES, Schedule, make_schedule
from jaxpar.pipeline.timing.in_flight import lockstep_peaks, published_peaks
from tests.pipeline.any_schedule import any_schedule
from tests.pipeline.paper import Paper

F, B, W = Kind
ANY = settings(deadline=None, max_examples=60)


def check(program: PipelineProgram) -> None:
    """Run on paper: each action of the schedule counts once, and nothing of what it needs is missing."""
    paper = Paper(program)
    paper.run()
    assert Counter(paper.done) == Counter(action for order in program.schedule.orders for action in order)
    assert not paper.totals, "all gradients were released"


@ANY
@given(any_schedule())
def test_every_action_finds_what_it_needs_in_uniform_ticks(schedule: Schedule):
    check(make_program(schedule))


@ANY
@given(any_schedule())
def test_every_action_finds_what_it_needs_where_ranks_branch(schedule: Schedule):
    check(make_program(schedule, branching=True))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5), st.integers(0, 6), st.integers(1, 4), st.booleans())
def test_chunks_are_held_while_they_are_used_and_their_gradients_until_they_are_complete(
    ranks: int, more: int, virtual_stages: int, branching: bool
):
    sizes = {"ranks": ranks, "microbatches": ranks + more, "virtual_stages": virtual_stages}
    program = make_program(make_schedule("breadth-first", **sizes), hold=True, branching=branching)
    check(program)
    loads = [window.chunk for windows in program.loads.values() for window in windows]
    # Once forward and once backward; the last chunk stays where its backward begins before all ranks are through.
    wanted = dict.fromkeys(range(virtual_stages), 2) | {virtual_stages - 1: 2 if branching else 1}
    assert Counter(loads) == wanted
    assert max(program.slots["weights"], program.slots["gradients"]) <= 2 + (ranks > 1 and more < ranks)


@ANY
@given(any_schedule())
def test_there_are_as_many_slots_as_chunks_are_in_flight_on_the_rank_that_has_most(schedule: Schedule):
    """A split backward may need one more for what ranks write that have nothing to do."""
    slots, peaks = make_program(schedule).slots, lockstep_peaks(schedule)
    assert slots["stash"] == max(peak.stash for peak in peaks)
    assert 0 <= slots["kept"] - max(peak.kept for peak in peaks) <= schedule.splits_backward


@ANY
@given(any_schedule())
def test_where_ranks_branch_slots_are_those_of_the_published_order(schedule: Schedule):
    slots, peaks = make_program(schedule, branching=True).slots, published_peaks(schedule)
    assert slots["stash"] == max(peak.stash for peak in peaks)
    assert slots["kept"] == max(peak.kept for peak in peaks)


@ANY
@given(any_schedule())
def test_forwards_alone_need_no_stash(schedule: Schedule):
    orders = [
        tuple(Action(F, microbatch, chunk) for chunk in chunks for microbatch in range(schedule.microbatches))
        for chunks in schedule.chunks_of
    ]
    program = make_program(schedule, lockstep_ticks(orders, schedule.chunks))
    paper = Paper(program)
    paper.run()
    assert Counter(paper.done) == Counter(action for order in orders for action in order)
    assert not any(slots for name, slots in program.slots.items() if name != "arrivals")


@pytest.mark.parametrize("name", SCHEDULES)
def test_ranks_that_nobody_sends_to_get_nothing(name: str):
    """Only where chunks go round and round are the first and the last rank neighbours."""
    ranks = 1 if SCHEDULES[name].one_rank else 4
    program = make_program(make_schedule(name, ranks=ranks, microbatches=8))
    rounds = program.schedule.virtual_stages > 1 and SCHEDULES[name].placement == "loop"
    assert program.wraps == rounds
    assert (program.rows["y_before"][:, 0] == NOTHING).all() == (not rounds)


def test_a_pattern_that_repeats_is_one_loop():
    """Interleaved ticks alternate between those with a loss and those without, as long as there are microbatches."""
    programs = [make_program(make_schedule("interleaved", ranks=4, microbatches=m)) for m in (16, 64)]
    assert np.diff([max(loop.repeats for loop in program.loops) for program in programs]) == 12


@pytest.mark.parametrize("branching", [False, True], ids=["uniform", "branching"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_more_microbatches_repeat_loops_and_add_none(name: str, branching: bool):
    """Each run is compiled, so that a program would else grow with the batch."""
    for ranks in (1,) if SCHEDULES[name].one_rank else (2, 3, 4, 6):
        schedules = [make_schedule(name, ranks=ranks, microbatches=m) for m in (48, 96)]
        few, many = (make_program(schedule, branching=branching) for schedule in schedules)
        assert len(few.runs) == len(many.runs) <= 16
