"""Gathers of the next layer's weights in parts: where other messages are under way, and where that changes nothing."""

from dataclasses import replace
from typing import Any

import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import Choice
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.weight_prefetch import check_weight_prefetch, gathered_before
from tests.layout.test_layer_unroll import plan_of, plan_with
from tests.sentences import refused
from tests.small_run import small

OFFLOADED = {"parallel": {"fsdp": 4}, "memory": {"remat": {"mlp_input": "offload"}}}


@pytest.mark.parametrize(
    ("sections", "prefetch", "why"),
    [
        ({"parallel": {"fsdp": 4}}, "layer", "nothing but weights"),
        ({"parallel": {"fsdp": 2, "context": 2}}, "parts", "attention sends"),
        ({"parallel": {"fsdp": 2, "context": 2, "overlap": {"weight_prefetch": "layer"}}}, "layer", "named by"),
        ({"parallel": {"fsdp": 4, "overlap": {"weight_prefetch": "parts"}}}, "parts", "named by"),
        (OFFLOADED, "parts", "copies to and from"),
        (OFFLOADED | {"precision": {"compute": "bfloat16", "matmul": "fp8_delayed"}}, "layer", "8 bits"),
        ({"parallel": {"pipe": 2, "fsdp": 2, "microbatches": 2}}, "layer", "pipelines"),
        ({"parallel": {"fsdp": 2, "context": 2}, "model": {"experts": ExpertsConfig(4, 2, 16)}}, "layer", "router"),
        ({"parallel": {"fsdp": 4, "zero": 2}}, "layer", ""),
        ({"parallel": {"replica": 4}}, "layer", ""),
    ],
)
def test_in_parts_where_a_layer_sends_more_than_weights_and_gradients(sections, prefetch, why):
    check_weight_prefetch(plan_with("weight_prefetch", prefetch, why, **sections))


@pytest.mark.parametrize(
    ("gpu", "parallel", "prefetch"),
    [
        ("a100-80", {"fsdp": 4}, "parts"),
        ("a100-80", {"replica": 2, "fsdp": 2}, "parts"),
        ("a100-80", {"fsdp": 2, "tensor": 2}, "layer"),
        ("h100", {"fsdp": 4}, "layer"),
        ("b200", {"fsdp": 4}, "layer"),
    ],
)
def test_in_parts_where_xla_does_not_estimate_what_a_message_takes(gpu: str, parallel: dict[str, int], prefetch: str):
    cluster = parse_cluster(f"{gpu}:1x4")
    config = resolve_config(small(parallel=parallel, model={"layers": 16}, data={"batch_size": 8}), 4)
    plan = make_plan(config, DescribedGPU.from_gpu(cluster.gpu), 4, cluster)
    assert plan.weight_prefetch.name == prefetch
    assert ("before Hopper" in plan.weight_prefetch.reason) == (prefetch == "parts")


def test_what_would_change_nothing_is_refused():
    with refused("parallel.overlap.weight_prefetch: parts", "zero: 3", "expected auto or layer"):
        plan_of(parallel={"fsdp": 4, "zero": 1, "overlap": {"weight_prefetch": "parts"}})
    _, plan = plan_of(parallel={"fsdp": 4, "zero": 2})
    with refused("plan.weight_prefetch: parts", "expected layer"):
        check_weight_prefetch(replace(plan, weight_prefetch=Choice("parts")))


@pytest.mark.parametrize(
    ("parallel", "block"),
    [
        ({"fsdp": 4, "overlap": {"weight_prefetch": "parts"}}, 1),
        ({"fsdp": 2, "context": 2}, 0),
        ({"fsdp": 2, "context": 2, "overlap": {"weight_prefetch": "layer"}}, None),
    ],
    ids=["feed-forward", "context ranks", "not in parts"],
)
def test_where_attention_takes_long_the_next_ones_weights_come_beside_it(parallel: dict[str, Any], block: int | None):
    assert gathered_before(plan_of(parallel=parallel)[1]) == block
