"""Limits up to which XLA joins messages of a layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from jax.sharding import Mesh

from jaxpar.compiler.compile import plan_for
from jaxpar.config.plan import Plan
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.joining import GATHERS, SCATTERS, step_options
from tests.small_run import small

EMBED, MLP = 64, 192


def planned(**parallel: Any) -> Plan:
    model = {"embed": EMBED, "mlp": MLP, "layers": 2}
    config = small(model=model, parallel=parallel, precision={"compute": "bfloat16"}, attention={"backend": "xla"})
    return plan_for(config, parse_cluster("h100:1x8"))[1]


def mesh_on(platform: str) -> Mesh:
    class Devices:
        flat = (SimpleNamespace(platform=platform),)

    mesh: Any = SimpleNamespace(devices=Devices)
    return mesh


def test_the_limit_is_the_largest_matrix_of_a_layer():
    """Gathered in bfloat16, and as a device accumulates its gradient in float32."""
    plan = planned(fsdp=4, tensor=2, zero=3)
    assert (plan.joined_gathers, plan.joined_scatters) == (2 * EMBED * MLP // 2, 4 * EMBED * MLP // 2 // 4)
    plan = planned(fsdp=4, tensor=2, zero=3, joined_messages="xla")
    assert (plan.joined_gathers, plan.joined_scatters) == (None, None)
    plan = planned(fsdp=8, zero=2)
    assert (plan.joined_gathers, plan.joined_scatters) == (None, 4 * EMBED * MLP // 8)


@pytest.mark.parametrize("parallel", [{"fsdp": 8, "zero": 1}, {"replica": 4, "tensor": 2}], ids=["once", "none"])
def test_layers_that_send_no_weights_leave_it_to_xla(parallel: dict[str, Any]):
    plan = planned(**parallel)
    assert (plan.joined_gathers, plan.joined_scatters) == (None, None)
    assert step_options(plan, mesh_on("gpu")) == {}


def test_options_are_for_gpus_and_a_flag_of_the_users_counts_more(monkeypatch: pytest.MonkeyPatch):
    plan = planned(fsdp=8)
    assert step_options(plan, mesh_on("cpu")) == {}
    both = {GATHERS: plan.joined_gathers, SCATTERS: plan.joined_scatters}
    assert step_options(plan, mesh_on("gpu")) == both
    monkeypatch.setenv("XLA_FLAGS", f"--xla_foo=1 --{GATHERS}=7")
    assert step_options(plan, mesh_on("gpu")) == {SCATTERS: plan.joined_scatters}
