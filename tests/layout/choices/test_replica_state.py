"""When replicas share optimizer state."""

from typing import Any, cast

import jax
import pytest

from jaxpar.config.axes import axis_sizes
from jaxpar.config.plan import AxisSizes
from jaxpar.layout.choices.replica_state import state_over_replicas
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.step_layout import StepLayout
from jaxpar.training.run.plan_table import _zero_words
from tests.small_run import layout_of, small

SHARED = {"overlap": {"shard_state_over_replicas": True}}


class OnGpu:
    """A device, as the choice sees it."""

    platform = "gpu"


@pytest.mark.parametrize(
    ("parallel", "sections", "shared", "why"),
    [
        ({}, {}, True, "less memory"),
        ({"overlap": {"shard_state_over_replicas": False}}, {}, False, "named by"),
        ({"zero": 2}, {}, False, "parallel.zero: 3"),
        ({"zero": 0}, {}, False, ""),
        ({"replica": 1, "fsdp": 4}, {}, False, ""),
        ({"replica": 8, "fsdp": 1}, {}, False, "several ranks of a replica"),
        ({"replica": 8, "fsdp": 1} | SHARED, {}, True, "named by"),
        ({"replica": 4, "fsdp": 1, "context": 2}, {}, True, "less memory"),
        ({}, {"memory": {"optimizer_offload": "host"}}, False, "on the host"),
        ({}, {"precision": {"compute": "bfloat16", "matmul": "fp8_current"}}, False, "quantised"),
        ({"pipe": 2, "microbatches": 2}, {}, False, "pipeline"),
    ],
)
def test_replicas_share_optimizer_state_where_programs_were_compared(
    parallel: dict[str, Any], sections: dict[str, Any], shared: bool, why: str
):
    config = small(parallel={"replica": 2, "fsdp": 2} | parallel, **sections)
    axes, device = AxisSizes(**axis_sizes(config.parallel)), cast(Any, OnGpu())
    found = state_over_replicas(config, axes, device)
    assert found.name == shared and why in found.reason
    on_cpu = state_over_replicas(config, axes, jax.devices()[0])
    assert on_cpu.name == (config.parallel.overlap.shard_state_over_replicas is True)


@pytest.mark.parametrize(
    ("parallel", "model", "words"),
    [
        ({"replica": 2, "fsdp": 2}, {}, "optimizer state over 2 replicas too"),
        (
            {"replica": 4, "fsdp": 2},
            {"embed": 28, "head_dim": 8, "layers": 1},
            "the same in all replicas for want of a dim that divides: embedding/tokens",
        ),
    ],
)
def test_the_plan_names_replicas_that_share_state_and_matrices_whose_state_they_cannot_share(
    parallel: dict[str, Any], model: dict[str, Any], words: str
):
    config = small(parallel=parallel | SHARED, model=model)
    config = resolve_config(config, layout_of(config.parallel))
    assert words in _zero_words(StepLayout(config, make_plan(config, jax.devices()[0])))
