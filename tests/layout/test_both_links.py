"""Where two collectives may be under way at a time."""

from __future__ import annotations

import jax
import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config.plan import Plan
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.both_links import AT_ONCE, with_both_links
from tests.small_run import small


def planned(cluster: str, **parallel: int) -> Plan:
    config = small(
        model={"layers": 4, "heads": 4, "kv_heads": 4},
        parallel=parallel,
        data={"batch_size": 16},
        precision={"compute": "bfloat16"},
        attention={"backend": "xla"},
    )
    return plan_for(config, parse_cluster(cluster))[1]


def test_weights_of_other_nodes_travel_beside_messages_of_tensor_ranks():
    plan = planned("h100:2x8", fsdp=4, tensor=4)
    assert plan.collectives_at_once == AT_ONCE
    assert plan.weight_prefetch == "parts"
    unsettled = planned("h100:2x8", fsdp=16)
    assert with_both_links(unsettled, jax.devices()[0], 8) == unsettled, "CPU devices have no such option"


@pytest.mark.parametrize(
    ("cluster", "parallel"),
    [
        ("h100:1x8", {"fsdp": 2, "tensor": 4}),  # all over NVLink
        ("h100:2x8", {"fsdp": 16}),  # no tensor ranks
        ("h100:2x8", {"fsdp": 4, "tensor": 4, "zero": 1}),  # nothing is gathered ahead
        ("h100:4x2", {"fsdp": 2, "tensor": 4}),  # tensor ranks leave their node too
        ("h100:2x8", {"replica": 2, "fsdp": 2, "tensor": 4}),  # weights do not
        ("h100:2x8", {"pipe": 2, "fsdp": 4, "tensor": 2, "microbatches": 2}),
    ],
)
def test_elsewhere_one_is_in_flight(cluster: str, parallel: dict[str, int]):
    assert planned(cluster, **parallel).collectives_at_once is None
