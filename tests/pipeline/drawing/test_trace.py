"""Traces of schedules for Perfetto."""

import json
from fractions import Fraction

import pytest

from jaxpar.pipeline.drawing.trace import UNIT, trace
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.simulate import simulate
from tests.pipeline.any_schedule import every_schedule

SCHEDULES = every_schedule(4, 8)


def events(schedule, **durations):
    """The simulation, and the events of its trace by phase."""
    simulation = simulate(schedule, Durations(**durations))
    found: dict[str, list[dict]] = {}
    for event in json.loads(json.dumps(trace(simulation)))["traceEvents"]:
        found.setdefault(event["ph"], []).append(event)
    return simulation, found


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_each_rank_has_a_track_with_its_actions_and_a_counter_of_the_chunks_in_flight(schedule):
    simulation, found = events(schedule)
    boxes = {(e["tid"], e["name"], e["ts"], e["ts"] + e["dur"]) for e in found["X"]}
    assert boxes == {(e.rank, str(e.action), e.start * UNIT, e.end * UNIT) for e in simulation.timeline}
    names = {e["tid"]: e["args"]["name"] for e in found["M"] if e["name"] == "thread_name"}
    assert names == {rank: f"rank {rank}" for rank in range(schedule.ranks)}
    for rank, peak in enumerate(simulation.peak_in_flight):
        counts = [e["args"]["chunks"] for e in found["C"] if e["name"] == f"in flight, rank {rank}"]
        assert (max(counts), counts[-1]) == (peak, 0)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_arrows_lead_from_what_sends_to_what_uses_it(schedule):
    simulation, found = events(schedule, transfer=Fraction(1, 2))
    starts, ends = ({e["id"]: e for e in found[phase]} for phase in "sf")
    assert len(starts) == len(found["s"]) == simulation.transfers
    assert starts.keys() == ends.keys()
    inside = lambda arrow: [
        box for box in found["X"] if box["tid"] == arrow["tid"] and box["ts"] <= arrow["ts"] < box["ts"] + box["dur"]
    ]
    for number, start in starts.items():
        (source,), (target,) = inside(start), inside(ends[number])
        step = 1 if start["name"] == "activation" else -1
        kind = "F" if start["name"] == "activation" else "B"
        assert (source["args"]["kind"], target["args"]["kind"]) == (kind, kind)
        assert target["args"]["chunk"] == source["args"]["chunk"] + step
        assert target["args"]["microbatch"] == source["args"]["microbatch"]
        assert ends[number]["ts"] >= source["ts"] + source["dur"] + UNIT / 2
        assert source["tid"] != target["tid"]
