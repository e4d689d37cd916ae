"""How a plan shares a row over context ranks: groups inside nodes, what would not be used, what is exchanged again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config, UserError
from jaxpar.config.plan import Plan
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.mesh.devices import devices_per_node
from jaxpar.training.resolve import attention_request, make_plan, resolve_config
from tests.small_run import layout_of, small

LONG = {"sequence_length": 256}


def config_of(model: dict[str, Any] | None = None, memory: dict[str, Any] | None = None, **parallel: Any) -> Config:
    return small(model={"heads": 32, "head_dim": 2} | (model or {}), data=LONG, memory=memory or {}, parallel=parallel)


def plan_of(config: Config, node_devices: int | None = None) -> Plan:
    return make_plan(resolve_config(config, layout_of(config.parallel)), jax.devices()[0], node_devices)


@pytest.mark.parametrize(
    ("cluster", "tensor", "groups"),
    [("h100:1x8", 1, 4), ("h100:4x8", 1, 8), ("h100:4x8", 2, 4), ("h100:8x4", 1, 4), ("h100:8x4", 2, 2)],
)
def test_ranks_exchange_heads_inside_a_node(cluster: str, tensor: int, groups: int) -> None:
    where = parse_cluster(cluster)
    config = config_of(context=where.devices // tensor, tensor=tensor, context_strategy="usp")
    _, plan = plan_for(config, where)
    assert plan.ulysses == groups


def test_groups_that_the_user_names_may_span_nodes() -> None:
    assert plan_of(config_of(context=8, context_strategy="usp", ulysses=4), node_devices=2).ulysses == 4


def node_of(devices: list[dict[str, int]]) -> int:
    return devices_per_node([SimpleNamespace(**device) for device in devices])


def test_processes_of_one_machine_are_one_node() -> None:
    assert devices_per_node(jax.devices()) == len(jax.devices())
    assert node_of([{"process_index": process, "slice_index": process // 4} for process in range(8)]) == 4
    assert node_of([{"process_index": process, "partition_index": process // 4} for process in range(8)]) == 4
    assert node_of([{"process_index": process // 4} for process in range(8)]) == 4
    assert node_of([{"process_index": process} for process in (0, 0, 0, 1)]) == 1


@pytest.mark.parametrize("strategy", ["auto", "allgather", "ring", "ulysses"])
def test_groups_of_another_strategy_than_usp_are_refused(strategy: str) -> None:
    with pytest.raises(UserError, match=r"parallel\.ulysses: 4 would not be used, .*context_strategy: usp with it"):
        plan_of(config_of(context=8, context_strategy=strategy, ulysses=4))


@pytest.mark.parametrize("strategy", ["allgather", "ring", "ulysses", "usp"])
def test_on_one_rank_every_strategy_and_order_leaves_the_row_as_it_is(strategy: str) -> None:
    config = small(data={"sequence_length": 63}, parallel={"context_strategy": strategy, "context_order": "zigzag"})
    plan = plan_of(config)
    assert (plan.context_strategy.name, plan.context_order, plan.ulysses) == (strategy, "contiguous", 1)


@pytest.mark.parametrize(
    ("memory", "recomputes"),
    [
        ({"remat": "none"}, False),
        ({"remat": {"preset": "none", "layer_input": "offload"}}, False),
        ({"remat": {"preset": "none", "query": "offload"}}, True),
        ({"remat": "none", "mlp_tiles": 2}, True),
        ({"remat": "selective"}, True),
    ],
    ids=str,
)
def test_a_layer_that_keeps_less_than_everything_exchanges_heads_again(
    memory: dict[str, Any], recomputes: bool
) -> None:
    config = config_of(context=8, context_strategy="ulysses", memory=memory)
    assert attention_request(config, jax.devices()[0]).recomputes == recomputes
