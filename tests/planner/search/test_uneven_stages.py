"""Virtual stages of unequal lengths are in the space where they add few layers of padding."""

from __future__ import annotations

import pytest

from jaxpar.hardware.cluster import parse_cluster
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


def test_a_plan_with_uneven_virtual_stages_is_one_that_the_trainer_makes():
    config = model_of(model={"layers": 31}, data={"batch_size": 32})
    fixed = {"pipe": "4", "schedule": "interleaved", "virtual_stages": "2", "microbatch": "1"}
    plan = Search(Space(config, parse_cluster("h100:1x4"), fixed)).best(1)[0].plan
    assert plan.virtual_stages == 2 and sorted(plan.stage_layers) == [3, *[4] * 7]
