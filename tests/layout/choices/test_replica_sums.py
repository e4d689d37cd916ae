"""When a plan sums gradients over replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import jax
import pytest

from jaxpar.config.axes import axis_sizes
from jaxpar.config.plan import AxisSizes, Choice
from jaxpar.layout.choices.pipeline import pipeline_program
from jaxpar.layout.choices.replica_sums import check_replica_sums, replica_sums, state_over_replicas
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.training.run.plan_table import _new_weights_row, _zero_words
from tests.sentences import refused
from tests.small_run import layout_of, small, with_overlap

OVERLAPPED = {"overlap": {"replica_sums": "overlapped"}}


class OnGpu:
    """A device, as the choice sees it."""

    platform = "gpu"


def chosen(memory: dict[str, Any] | None = None, **parallel: Any) -> Choice[Any]:
    config = small(parallel=parallel, memory=memory or {})
    own = config.parallel
    axes = AxisSizes(own.pipe, own.replica, own.fsdp, own.expert, own.context, own.tensor)
    device: Any = OnGpu()
    return replica_sums(config, axes, device)


@pytest.mark.parametrize(
    ("parallel", "when"),
    [
        ({"replica": 2, "fsdp": 2}, "overlapped"),
        ({"replica": 2, "fsdp": 2, "zero": 2}, "overlapped"),
        ({"fsdp": 4, "zero": 0}, "overlapped"),
        ({"replica": 2, "zero": 1}, "overlapped"),
        ({"replica": 2, "fsdp": 2, "zero": 1}, "after"),
        ({"replica": 2, "pipe": 2, "microbatches": 2}, "after"),
        ({"replica": 2, "fsdp": 2, "overlap": {"replica_sums": "after"}}, "after"),
        ({"fsdp": 4}, "after"),
    ],
)
def test_sums_run_beside_the_backward_where_they_can(parallel: dict[str, Any], when: str):
    assert chosen(**parallel).name == when


def test_layers_in_host_memory_are_summed_after_the_backward():
    host = {"optimizer_offload": "host", "weights_offload": "host"}
    assert "host memory" in chosen(host, replica=2, fsdp=2).reason


@pytest.mark.parametrize(
    ("parallel", "why"),
    [
        ({"fsdp": 4}, "parallel.replica is 1"),
        ({"replica": 2, "pipe": 2, "microbatches": 2}, "a pipeline's chunks"),
        ({"replica": 2, "fsdp": 2, "zero": 1}, "first scattered"),
    ],
)
def test_sums_that_cannot_overlap_are_refused(parallel: dict[str, Any], why: str):
    with refused("parallel.overlap.replica_sums: overlapped", why, "expected auto"):
        chosen(**parallel, overlap={"replica_sums": "overlapped"})


@pytest.mark.parametrize(
    ("parallel", "sections", "first", "why"),
    [
        (OVERLAPPED, {}, True, "beside the one before"),
        ({"overlap": {"replica_sums": "after"}}, {}, False, "do not overlap"),
        (OVERLAPPED, {"memory": {"optimizer_offload": "host"}}, False, "in host memory"),
        (OVERLAPPED, {"precision": {"matmul": "fp8_current"}}, False, "become codes together"),
    ],
)
def test_new_weights_over_replicas_come_with_their_first_use_where_messages_overlap(
    parallel: dict[str, Any], sections: dict[str, Any], first: bool, why: str
):
    shared = with_overlap({"replica": 2, "fsdp": 2, "microbatches": 3} | parallel, shard_state_over_replicas=True)
    config = small(parallel=shared, **sections | {"data": {"batch_size": 12}})
    config = resolve_config(config, layout_of(config.parallel))
    plan = make_plan(config, jax.devices()[0])
    assert pipeline_program(plan).runs[0].begins == first and not pipeline_program(plan).runs[-1].begins
    ((name, how, reason),) = _new_weights_row(plan)
    assert name == "new weights over replicas" and why in reason
    assert how == ("gathered with their first use" if first else "gathered before the forward")
    assert "optimizer state over 2 replicas too" in _zero_words(StepLayout(config, plan))


@pytest.mark.parametrize(
    ("parallel", "sections", "shared", "why"),
    [
        ({}, {}, True, "both messages over replicas overlap"),
        ({"overlap": {"shard_state_over_replicas": False}}, {}, False, "named by"),
        ({"overlap": {"shard_state_over_replicas": True, "replica_sums": "after"}}, {}, True, "named by"),
        ({"overlap": {"replica_sums": "after"}}, {}, False, "do not overlap"),
        ({"zero": 2}, {}, False, "parallel.zero: 3"),
        ({"replica": 1, "fsdp": 4}, {}, False, ""),
        ({"replica": 8, "fsdp": 1}, {}, False, "several ranks of a replica"),
        ({"replica": 8, "fsdp": 1, "overlap": {"shard_state_over_replicas": True}}, {}, True, "named by"),
        ({"replica": 4, "fsdp": 1, "context": 2}, {}, True, "both messages over replicas overlap"),
        ({}, {"memory": {"optimizer_offload": "host"}}, False, "in host memory"),
        ({}, {"precision": {"compute": "bfloat16", "matmul": "fp8_current"}}, False, "become codes together"),
        ({"pipe": 2, "microbatches": 2}, {}, False, "do not overlap"),
    ],
)
def test_replicas_share_optimizer_state_where_both_messages_overlap(
    parallel: dict[str, Any], sections: dict[str, Any], shared: bool, why: str
):
    config = small(parallel={"replica": 2, "fsdp": 2} | parallel, **sections)
    axes, device = AxisSizes(**axis_sizes(config.parallel)), cast(Any, OnGpu())
    sums = replica_sums(config, axes, device).name
    found = state_over_replicas(config, axes, device, sums)
    assert found.name == shared and why in found.reason
    on_cpu = state_over_replicas(config, axes, jax.devices()[0], sums)
    assert on_cpu.name == (config.parallel.overlap.shard_state_over_replicas is True)


def test_matrices_whose_state_replicas_cannot_share_are_named():
    shared = {"replica": 4, "fsdp": 2, "overlap": {"shard_state_over_replicas": True}}
    config = small(parallel=shared, model={"embed": 28, "head_dim": 8, "layers": 1})
    config = resolve_config(config, layout_of(config.parallel))
    words = _zero_words(StepLayout(config, make_plan(config, jax.devices()[0])))
    assert "the same in all replicas for want of a dim that divides: embedding/tokens" in words


def test_a_plan_that_overlaps_has_its_last_microbatch_apart_and_sums_matrices_in_it():
    config = small(parallel={"replica": 2, "fsdp": 2, "microbatches": 2, "overlap": {"replica_sums": "overlapped"}})
    config = resolve_config(config, layout_of(config.parallel))
    plan = make_plan(config, jax.devices()[0])
    assert [(run.ticks, run.completes) for run in pipeline_program(plan).runs] == [(1, False), (1, True)]
    placed = StepLayout(config, plan).placements.weights[LAYERS]["all"]
    early = placed["mlp"]["up"].transport.early
    assert "replica" in early and "fsdp" not in early
    assert placed["attention_norm"]["scale"].transport.early == ()
    alone = replace(plan, axes=AxisSizes(fsdp=4))
    with refused("plan.replica_sums: overlapped", "parallel.replica is 1", "expected after"):
        check_replica_sums(alone, config)
