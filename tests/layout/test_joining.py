"""Limits up to which XLA joins messages of a layer."""

from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config.plan import Plan
from jaxpar.hardware.cluster import parse_cluster
from tests.small_run import small

EMBED, MLP = 64, 192


def planned(**parallel: Any) -> Plan:
    model = {"embed": EMBED, "mlp": MLP, "layers": 2}
    config = small(model=model, parallel=parallel, precision={"compute": "bfloat16"}, attention={"backend": "xla"})
    return plan_for(config, parse_cluster("h100:1x8"))[1]


def test_the_limit_is_the_largest_matrix_of_a_layer():
    """Gathered in bfloat16, and as a device accumulates its gradient in float32."""
    plan = planned(fsdp=4, tensor=2, zero=3)
    assert (plan.joined_gathers, plan.joined_scatters) == (2 * EMBED * MLP // 2, 4 * EMBED * MLP // 2 // 4)
    plan = planned(fsdp=8, zero=2)
    assert (plan.joined_gathers, plan.joined_scatters) == (None, 4 * EMBED * MLP // 8)


@pytest.mark.parametrize("parallel", [{"fsdp": 8, "zero": 1}, {"replica": 4, "tensor": 2}], ids=["once", "none"])
def test_layers_that_send_no_weights_leave_it_to_xla(parallel: dict[str, Any]):
    plan = planned(**parallel)
    assert (plan.joined_gathers, plan.joined_scatters) == (None, None)
