"""Virtual stages of unequal lengths are in the space where they add few layers of padding."""

from collections.abc import Sequence
from itertools import product

import pytest

from jaxpar.hardware.cluster import parse_cluster
from jaxpar.pipeline.schedules import make_schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.simulate import Mode, simulate
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from tests.planner.spaces import model_of


@pytest.mark.parametrize(("layers", "virtual"), [(126, {2, 4}), (128, {2, 4, 8}), (96, {2, 3, 6}), (100, set())])
def test_virtual_stages_may_add_a_twentieth_of_the_layers(layers: int, virtual: set[int]):
    """Llama 3 405B has 126 layers on 16 ranks: 32 or 64 chunks add two."""
    config = model_of(model={"layers": layers}, data={"batch_size": 64})
    space = Space(config, parse_cluster("h100:2x8"))
    found = {stages for name, stages in space.schedules(16, 32) if name == "interleaved"}
    assert found == virtual


LENGTHS = [own for own in product(range(1, 10), repeat=4) if sum(own) == 12]
"""Of four stages of a model of twelve layers."""
UNIFORM = ("1f1b", "zb-uniform", "gpipe")


def seconds_of(name: str, lengths: Sequence[int], head: float, mode: Mode) -> float:
    """Of a pipeline whose layers take 1 s forward and 2 s backward, half of it for weights, by the simulator."""
    forward = tuple(map(float, lengths))
    durations = Durations(forward, tuple(2 * one for one in forward), forward, head, 0.1)
    schedule = make_schedule(name, ranks=len(lengths), microbatches=8)
    return float(simulate(schedule, durations, mode=mode).makespan)


@pytest.mark.parametrize("head", [0.0, 4.0, 20.0])
@pytest.mark.parametrize("name", UNIFORM)
def test_no_lengths_are_faster_than_equal_ones_in_uniform_ticks(name: str, head: float):
    """Which is why they are not searched on GPUs of one kind: not even where the loss takes longer than a stage."""
    equal = seconds_of(name, (3, 3, 3, 3), head, "lockstep")
    assert min(seconds_of(name, own, head, "lockstep") for own in LENGTHS) == pytest.approx(equal)
    assert seconds_of(name, (4, 3, 3, 2), head, "lockstep") > 1.05 * equal


def test_a_plan_with_uneven_virtual_stages_is_one_that_the_trainer_makes():
    config = model_of(model={"layers": 31}, data={"batch_size": 32})
    fixed = {"pipe": "4", "schedule": "interleaved", "virtual_stages": "2", "microbatch": "1"}
    plan = Search(Space(config, parse_cluster("h100:1x4"), fixed)).best(1)[0].plan
    assert plan.virtual_stages == 2 and sorted(plan.stage_layers) == [3, *[4] * 7]
