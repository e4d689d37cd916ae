"""Pipelines whose ranks share embedding and head: what they take, and where they are chosen."""

from typing import Any

import pytest

from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.pipeline.schedules import make_schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.simulate import simulate
from jaxpar.planner.report import words
from jaxpar.planner.search.asked import never_measured, parse_avoided
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.settings import plan_on
from jaxpar.planner.step_time.pipeline import Pieces, ticks_of
from jaxpar.planner.step_time.step import Step
from tests.compiler.inspected import asked, wide
from tests.planner.spaces import model_of, search_of
from tests.sentences import refused

LARGE = model_of(model={"vocab": 131072})
"""A vocabulary that takes more than the layers."""
CLUSTER = "h100:1x4"


def best(**fixed: Any) -> Planned:
    return search_of(LARGE, CLUSTER, **fixed).best(1)[0]


def step_of(layout: Layout) -> Step:
    search = search_of(LARGE, CLUSTER)
    return search.timer.steps().step(layout)


@pytest.mark.parametrize(("schedule", "virtual"), [("1f1b", 1), ("interleaved", 2), ("zb-v", 2)])
def test_a_sum_comes_with_every_forward_and_backward_and_two_with_a_loss(schedule: str, virtual: int):
    """Against the simulator of uniform ticks, with chunks that take as much longer."""
    layout = Layout(pipe=4, zero=0, schedule=schedule, virtual_stages=virtual, shared_embed_and_head=True)
    step = step_of(layout)
    pieces: Pieces = step.pieces
    layers = LARGE.model.layers // (4 * virtual)
    forward, backward = (layers * own.seconds + pieces.sums for own in pieces.layer[:2])
    weight = layers * pieces.layer.weight.seconds
    durations = Durations(forward, backward, weight, pieces.head.seconds, pieces.transfer, True)
    table = make_schedule(schedule, ranks=4, microbatches=16, virtual_stages=virtual)
    assert step.pipeline(layout).seconds == pytest.approx(float(simulate(table, durations, mode="lockstep").makespan))
    assert pieces.sums > 0 and pieces.head.seconds == pytest.approx(step.layers.head(4).seconds + 2 * pieces.sums)


def test_the_executor_sends_as_many_sums_as_are_counted():
    config = wide(
        parallel={"pipe": 4, "schedule": "1f1b", "microbatches": 4, "pipe_ends": "shared"}, model={"layers": 4}
    )
    config, plan = plan_on(config, parse_cluster(CLUSTER))
    ticks = ticks_of("1f1b", 4, 4, 1).counts
    sums = sum(number * (tick.forward + tick.backward + 2 * tick.head) for tick, number in ticks)
    between = 2 * plan.microbatch_rows * config.data.sequence_length * config.model.embed
    assert asked(config, plan)["sum_over_stages", "pipe"] == sums * 2 * between * 3 / 4


def test_a_large_vocabulary_is_shared_and_the_plan_is_one_that_the_trainer_makes():
    free, last = best(pipe=4), best(pipe=4, pipe_ends="last")
    assert free.candidate.layout.shared_embed_and_head and free.plan.pipe_ends == "shared"
    assert last.plan.pipe_ends == "last" and last.candidate.seconds > 1.2 * free.candidate.seconds
    _, plan = plan_on(free.config, free.cluster)
    assert plan == free.plan
    assert "shared ends" in words.schedule(free.candidate.layout) and "shared ends" not in words.schedule(
        last.candidate.layout
    )


def test_shared_ends_are_left_out_where_they_are_avoided_or_cannot_be():
    avoided = Search(Space(LARGE, parse_cluster(CLUSTER), {"pipe": "4"}, parse_avoided(["shared_ends"]))).best(1)[0]
    assert avoided.plan.pipe_ends == "last" and never_measured(best(pipe=4).candidate.layout)[-1] == "shared_ends"
    odd = model_of(model={"vocab": 1002, "vocab_multiple": 2})
    assert search_of(odd, CLUSTER, pipe=4).best(1)[0].plan.pipe_ends == "last"
    with refused("no layout of 4 GPUs", "padded vocabulary (1002) over pipe x tensor (pipe_ends is shared)"):
        search_of(odd, CLUSTER, pipe=4, pipe_ends="shared").best(1)
    with refused("--fix pipe_ends=shared (hosts are of several kinds)"):
        search_of(LARGE, "launch/clusters/h100_a100.yaml", pipe=2, pipe_ends="shared").best(1)
    with refused("--avoid shared_ends"):
        Search(
            Space(LARGE, parse_cluster(CLUSTER), {"pipe": "4", "pipe_ends": "shared"}, parse_avoided(["shared_ends"]))
        ).best(1)
