"""Workloads: times and bytes of a rank's layers, whatever the number of chunks."""

from fractions import Fraction

import pytest

from jaxpar.pipeline.drawing.summary import Refused, Summary, compare
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules import make_schedule
from jaxpar.pipeline.timing.simulate import simulate
from jaxpar.pipeline.timing.workload import Workload
from tests.sentences import refused

PLAIN = make_schedule("1f1b", ranks=4, microbatches=8)
THIRDS = make_schedule("interleaved", ranks=4, microbatches=8, virtual_stages=3)
V = make_schedule("zb-v", ranks=4, microbatches=8)


@pytest.mark.parametrize("schedule", [PLAIN, THIRDS, V], ids=lambda schedule: schedule.name)
def test_the_ideal_does_not_depend_on_the_number_of_chunks(schedule):
    workload = Workload(forward=1, backward=2, head=Fraction(1, 2))
    assert simulate(schedule, workload.durations(schedule)).ideal == 8 * 3 + Fraction(8, 2) / 4


def test_the_bubble_of_interleaved_is_a_third_with_three_chunks():
    bubbles = [simulate(s, Workload().durations(s)).bubble for s in (PLAIN, THIRDS)]
    assert bubbles == [9, 3]


def test_a_time_for_each_rank_holds_for_all_its_chunks():
    ranks = Workload(forward=1, stage_times=(1, 2, 3, 4))
    assert ranks.durations(PLAIN).forward == (1, 2, 3, 4)
    halves = tuple(Fraction(n, 2) for n in (1, 2, 3, 4, 4, 3, 2, 1))
    assert ranks.durations(V).forward == halves
    assert Workload(forward=1, stage_times=(1, 2, 3, 4, 4, 3, 2, 1)).durations(V).forward == halves


def test_bytes_are_shared_by_chunks_and_messages_are_not():
    workload = Workload(stash=600, kept=60, sent=7)
    sizes = workload.sizes(THIRDS)
    assert (sizes.stash, sizes.kept, sizes.sent) == (200, 20, 7)
    # 2 (p - 1) + (v - 1) p + 1 chunks are in flight on rank 0.
    assert simulate(THIRDS, sizes=sizes).peak_bytes[0] == 15 * 200


def test_times_that_fit_neither_ranks_nor_chunks_are_refused():
    with refused("stage times", "3 entries", "1f1b needs 4, one for each rank", error=ScheduleError):
        Workload(stage_times=(1, 1, 1)).durations(PLAIN)
    with refused("12 entries", "zb-v needs 4", "or 8, one for each chunk", error=ScheduleError):
        Workload(stage_times=(1,) * 12).durations(V)


def test_a_comparison_has_every_schedule_or_the_reason_against_it():
    found = compare(4, 6, 2, Workload())
    refused = {name: entry.reason for name, entry in found.items() if isinstance(entry, Refused)}
    assert refused.keys() == {"one-stage", "interleaved", "zb-uniform", "dualpipe-v"}
    assert "multiple of its 4 ranks, got 6" in refused["interleaved"]
    made = {name: entry for name, entry in found.items() if isinstance(entry, Summary)}
    assert made["breadth-first"].schedule.virtual_stages == 2
    assert made["1f1b"].schedule.virtual_stages == 1
    assert {entry.published.ideal for entry in made.values()} == {18}


def test_json_states_what_the_simulations_found():
    message = Summary(PLAIN, Workload(transfer=Fraction(1, 10), sent=3)).to_dict()
    simulation = simulate(PLAIN, Workload(transfer=Fraction(1, 10)).durations(PLAIN))
    assert message["bubble_fraction"] == pytest.approx((message["makespan"] - message["ideal"]) / message["ideal"])
    assert message["makespan"] == float(simulation.makespan)
    assert (message["peak_in_flight"], message["transfers"], sum(message["bytes_sent"])) == ([4, 3, 2, 1], 48, 144)
    assert message["modes"]["lockstep"]["peak_in_flight"] == [7, 5, 3, 1]
