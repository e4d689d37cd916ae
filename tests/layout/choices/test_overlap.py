"""How tensor ranks exchange the sequence: what a plan takes and why, and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import load_config
from jaxpar.config.plan import Choice, Plan, TensorOverlap
from jaxpar.config.reading.sections import with_values
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.choices.reasons import choice_rows
from jaxpar.layout.given_plan import check_plan
from jaxpar.layout.make_plan import make_plan, resolve_config
from tests.sentences import refused
from tests.small_run import layout_of, small

LLAMA = Path(__file__).parents[3] / "configs" / "llama3_8b.yaml"
GROUPS = {"attention_in", "attention_out", "mlp_in", "mlp_out"}


def plan_of(sections: dict[str, dict[str, Any]] | None = None, **parallel: Any) -> Plan:
    config = small(**sections or {}, parallel=parallel)
    return make_plan(resolve_config(config, layout_of(config.parallel)), jax.devices()[0])


def on_h100s(cluster: str = "h100:1x8", **parallel: Any) -> dict[str, TensorOverlap]:
    config = load_config(LLAMA)
    config = replace(config, parallel=with_values(config.parallel, {"fsdp": 1, "replica": 1, **parallel}))
    return plan_for(config, parse_cluster(cluster))[1].tensor_overlap


def test_without_tensor_parallelism_nothing_is_chosen():
    assert plan_of(fsdp=2).tensor_overlap == {}


def test_cpu_devices_take_the_plain_collectives():
    found = plan_of(tensor=2).tensor_overlap
    assert found.keys() == GROUPS
    assert {(own.algorithm.name, own.chunks) for own in found.values()} == {("plain", 1)}
    assert all("CPU" in own.algorithm.reason for own in found.values())


def test_gpus_take_rings_where_the_matmuls_are_long_enough():
    long = on_h100s(tensor=8)
    short = plan_for(small(parallel={"tensor": 8}), parse_cluster("h100:1x8"))[1].tensor_overlap
    assert {name for name, own in long.items() if own.algorithm.name == "ring"} >= {"mlp_in", "mlp_out"}
    assert {own.algorithm.name for own in short.values()} == {"plain"}, "each send takes a while to start"
    assert all("plainly" in own.algorithm.reason for own in (*long.values(), *short.values()))


def test_a_ring_that_is_named_is_taken_and_printed():
    plan = plan_of(tensor=2, overlap={"tensor": "ring", "tensor_chunks": 4})
    assert {(own.algorithm.name, own.chunks) for own in plan.tensor_overlap.values()} == {("ring", 4)}
    rows = [row for row in choice_rows(plan) if row[0].startswith("tensor overlap")]
    assert {name for name, _, _ in rows} == {f"tensor overlap {group} algorithm" for group in GROUPS}
    assert all(value == "ring" and "4 chunk" in why and "parallel.overlap.tensor" in why for _, value, why in rows)


def test_chunks_that_do_not_divide_a_part_are_refused():
    with refused("parallel.overlap.tensor_chunks: 3", "16 tokens", "data.sequence_length", "null"):
        plan_of(tensor=2, overlap={"tensor": "ring", "tensor_chunks": 3})
    with refused("parallel.overlap.tensor_chunks: 4", "22 tokens", "memory.mlp_tiles", "null"):
        plan_of({"memory": {"remat": "full", "mlp_tiles": 3}}, tensor=4, overlap={"tensor": "ring", "tensor_chunks": 4})


def test_settings_that_would_not_be_used_are_refused():
    with refused("parallel.overlap.tensor: ring", "parallel.tensor is 1", "plain"):
        plan_of(overlap={"tensor": "ring"})
    with refused("parallel.overlap.tensor_chunks: 2", "parallel.overlap.tensor is auto", "ring"):
        plan_of(tensor=2, overlap={"tensor_chunks": 2})


def test_branching_ticks_refuse_rings_and_auto_is_plain_there():
    branching = {"tensor": 2, "pipe": 2, "microbatches": 2, "pipe_ticks": "branching"}
    with refused("parallel.overlap.tensor: ring", "permutes", "parallel.pipe_ticks", "plain", "uniform"):
        plan_of(**branching, overlap={"tensor": "ring"})
    assert all("parallel.pipe_ticks" in own.algorithm.reason for own in plan_of(**branching).tensor_overlap.values())


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"mlp_inn": TensorOverlap(Choice("ring"))}, ("plan.tensor_overlap", "mlp_inn", "mlp_in")),
        ({"mlp_in": TensorOverlap(Choice("ring"), 3)}, ("plan.tensor_overlap.mlp_in", "3 chunks", "16 tokens")),
    ],
)
def test_a_given_plan_is_checked(changes: dict[str, TensorOverlap], parts: tuple[str, ...]):
    config = resolve_config(small(parallel={"tensor": 2}), 2)
    plan = replace(make_plan(config, jax.devices()[0]), tensor_overlap=changes)
    with refused(*parts):
        check_plan(plan, config, jax.devices()[0])


def test_chunks_of_fp8_matmuls_have_a_multiple_of_16_tokens():
    sections = {
        "model": {"mlp": 64},
        "precision": {"matmul": "fp8_current"},
        "data": {"sequence_length": 16, "batch_size": 4},
    }
    config = small(**sections, parallel={"fsdp": 4, "tensor": 2})
    found = plan_for(config, parse_cluster("h100:1x8"))[1].tensor_overlap["mlp_in"]
    assert found.algorithm.name == "plain"
    assert "8 tokens of a tensor rank are no multiple of 16" in found.algorithm.reason
    with refused("parallel.overlap.tensor: ring", "8 tokens", "no multiple of 16", "plain"):
        plan_of(sections, fsdp=4, tensor=2, overlap={"tensor": "ring"})
