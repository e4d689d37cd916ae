"""Ticks counted once give the same seconds as the simulator, whatever the durations."""

import pytest

from jaxpar.pipeline.schedules import make_schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.simulate import simulate
from jaxpar.planner.step_time.pipeline import Chunk, counted_ticks, ticks_of
from jaxpar.trace.clock import Clock
from jaxpar.trace.parts import Run

SIZES = (
    ("1f1b", 4, 9, 1),
    ("gpipe", 4, 8, 1),
    ("interleaved", 4, 8, 2),
    ("breadth-first", 3, 6, 2),
    ("zb-uniform", 4, 8, 2),
    ("zb-v", 4, 8, 2),
    ("dualpipe-v", 3, 7, 2),
    ("v-half", 4, 9, 2),
)


@pytest.mark.parametrize("transfer", [0.4, 1.9])
@pytest.mark.parametrize(("name", "ranks", "microbatches", "virtual"), SIZES)
def test_seconds_are_the_simulators(name: str, ranks: int, microbatches: int, virtual: int, transfer: float):
    """The longer transfer is between a backward without W and all of it."""
    times = {"forward": 1.0, "backward": 2.3, "weight": 0.9, "head": 0.7, "transfer": transfer}
    schedule = make_schedule(name, ranks=ranks, microbatches=microbatches, virtual_stages=virtual)
    wanted = simulate(schedule, Durations(**times, overlap=True), mode="lockstep").makespan
    found = ticks_of(name, ranks, microbatches, virtual).run(
        Clock(0.1), Chunk(Run(1.0), Run(2.3), Run(0.9)), Run(0.7), transfer
    )
    assert found.seconds == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "ranks", "virtual"),
    [
        ("1f1b", 16, 1),
        ("interleaved", 12, 3),
        ("interleaved", 4, 6),
        ("breadth-first", 4, 4),
        ("zb-uniform", 4, 5),
        ("zb-v", 12, 2),
        ("dualpipe-v", 12, 2),
    ],
)
def test_long_pipelines_and_many_chunks_follow_from_short_ones(name: str, ranks: int, virtual: int):
    sizes = name, ranks, 2 * ranks, virtual
    assert dict(ticks_of(*sizes).counts) == dict(counted_ticks(*sizes).counts)


def test_many_microbatches_follow_from_few():
    sizes = "interleaved", 4
    assert dict(ticks_of(*sizes, 24, 2).counts) == dict(counted_ticks(*sizes, 24, 2).counts)
