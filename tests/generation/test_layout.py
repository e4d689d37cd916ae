"""A run's configuration, laid out for generation."""

from typing import Any

import pytest

from jaxpar.generation.layout import generation_layout
from tests.small_run import SmallRun, small


@pytest.mark.parametrize(
    "parallel",
    [
        {"overlap": {"embedding_messages": "rows"}},
        {"overlap": {"layer_unroll": 2}},
        {"overlap": {"weight_prefetch": "parts"}},
    ],
)
def test_what_training_names_for_sharded_weights_stops_no_generation(parallel: dict[str, Any]):
    """A generator may hold the weights of a run with `zero: 3` whole, where these settings would be refused."""
    config = small(model={"layers": 4}, parallel={"fsdp": 4} | parallel)
    mesh = SmallRun(config).step.mesh
    for zero in (0, 3):
        plan = generation_layout(config, mesh, zero=zero).plan
        found = plan.zero, plan.embedding_messages.name, plan.layer_unroll.name, plan.weight_prefetch.name
        assert found == (zero, "table", 1, "layer")
