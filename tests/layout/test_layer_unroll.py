"""Layers in a turn of the loop: where several are worth their memory, and where they change nothing."""

from dataclasses import replace
from typing import Any

import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import Choice, Plan
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.layer_unroll import check_layer_unroll
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.pages.units import GIB
from tests.nonzero_gradients import gemma
from tests.sentences import refused
from tests.small_run import small

CLUSTER = parse_cluster("h100:1x4")
DEVICE = DescribedGPU.from_gpu(CLUSTER.gpu)


def plan_of(usable: int | None = None, **sections: dict[str, Any]):
    sections["data"] = {"batch_size": 8} | sections.get("data", {})
    sections["model"] = {"layers": 16} | sections.get("model", {})
    config = resolve_config(small(**sections), 4)
    return config, make_plan(config, DEVICE, 4, CLUSTER, usable)


def plan_with(key: str, value: object, why: str, **sections: dict[str, Any]) -> Plan:
    """A plan in which `key` has the `value`, for the reason `why`; an empty one where there is nothing to choose."""
    _, plan = plan_of(**sections)
    choice = getattr(plan, key)
    assert choice.name == value
    assert why in choice.reason and bool(why) == bool(choice.reason)
    return plan


@pytest.mark.parametrize(
    ("sections", "layers", "why"),
    [
        ({"parallel": {"fsdp": 4}}, 2, "two buffers"),
        ({"parallel": {"fsdp": 4, "overlap": {"layer_unroll": 1}}}, 1, "named by"),
        ({"parallel": {"fsdp": 4, "overlap": {"layer_unroll": 3}}}, 3, "named by"),
        ({"parallel": {"fsdp": 4, "zero": 2}}, 1, ""),
        ({"parallel": {"replica": 4}}, 1, ""),
        ({"parallel": {"pipe": 2, "fsdp": 2, "microbatches": 2}}, 1, "short"),
        ({"parallel": {"fsdp": 4}, "model": {"layers": 15}}, 1, "short"),
        ({"parallel": {"fsdp": 4}, "model": gemma(layers=24)}, 1, "short"),
        ({"parallel": {"fsdp": 4}, "model": {"experts": ExpertsConfig(4, 2, 16)}}, 1, "router"),
        ({"parallel": {"fsdp": 4}, "memory": {"remat": {"mlp_input": "offload"}}}, 1, "copies to the host"),
        ({"parallel": {"fsdp": 4}, "memory": {"weights_offload": "host", "optimizer_offload": "host"}}, 1, "copies to"),
    ],
)
def test_two_layers_where_weights_are_gathered_ahead_and_nothing_else_passes(sections, layers, why):
    check_layer_unroll(plan_with("layer_unroll", layers, why, **sections))


def test_one_layer_where_there_is_no_memory_for_more():
    sections = {"parallel": {"fsdp": 4}, "model": {"embed": 512, "heads": 8, "mlp": 4096, "vocab": 512}}
    config, two = plan_of(**sections)
    one = replace(two, layer_unroll=Choice(1))
    more = estimate_memory(config, two).device - estimate_memory(config, one).device
    layer = 4 * (4 * 512 * 512 + 3 * 512 * 4096)
    read = estimate_memory(config, two).saved_activations // two.runs[0].layers
    assert more == pytest.approx(layer + read, rel=0.01), "weights in float32, and what the next layer has kept"
    tight = int(1.05 * estimate_memory(config, one).device)
    assert tight < GIB
    _, plan = plan_of(tight, **sections)
    assert plan.layer_unroll.name == 1 and "no memory" in plan.layer_unroll.reason


def test_what_would_change_nothing_is_refused():
    with refused("parallel.overlap.layer_unroll: 2", "zero: 3", "expected auto or 1"):
        plan_of(parallel={"fsdp": 4, "zero": 1, "overlap": {"layer_unroll": 2}})
    _, plan = plan_of(parallel={"fsdp": 4, "zero": 2})
    with refused("plan.layer_unroll: 2", "expected 1"):
        check_layer_unroll(replace(plan, layer_unroll=Choice(2)))
