"""When replicas share optimizer state."""

from typing import Any, cast

import jax
import pytest

from jaxpar.config.axes import axis_sizes
from jaxpar.config.plan import AxisSizes
from jaxpar.layout.choices.replica_state import state_over_replicas
from tests.small_run import small

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
        ({}, {"precision": {"compute": "bfloat16", "matmul": "fp8_current"}}, False, "quantized"),
        ({"pipe": 2, "microbatches": 2}, {}, False, "pipeline"),
    ],
)
def test_replicas_share_optimizer_state_where_programs_were_compared(parallel, sections, shared, why):
    config = small(parallel={"replica": 2, "fsdp": 2} | parallel, **sections)
    axes, device = AxisSizes(**axis_sizes(config.parallel)), cast(Any, OnGpu())
    found = state_over_replicas(config, axes, device)
    assert found.name == shared and why in found.reason
    on_cpu = state_over_replicas(config, axes, jax.devices()[0])
    assert on_cpu.name == (config.parallel.overlap.shard_state_over_replicas is True)
