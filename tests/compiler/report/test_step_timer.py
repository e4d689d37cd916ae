"""Seconds of kernels and transfers: those of the planner's model of GPUs and links."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jaxpar.compiler.program.attribution import Movement, movements
from jaxpar.compiler.program.costs.ops import Cost, costs
from jaxpar.compiler.program.hlo.records import ProgramError
from jaxpar.compiler.program.loops import executions
from jaxpar.compiler.report.step_timer import StepTimer
from jaxpar.cost.hardware_model import HOPPER, hardware_of
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.hardware.cluster import Pods, parse_cluster
from tests.compiler.inspected import hsdp
from tests.compiler.program.programs import module
from tests.sentences import refused

CLUSTER = parse_cluster("h100:2x4")
CLOCK = StepTimer(CLUSTER.gpu, CLUSTER, HOPPER)
NETWORK = network_of(CLUSTER, HOPPER)


def cost(kind: str = "matmul", arithmetic: str = "bfloat16", *, op: str = "negate", **numbers: Any) -> Cost:
    made = module(f"%a = f32[8]{{0}} parameter(0)\n%x = f32[8]{{0}} {op}(%a)")
    (found,) = costs(made, executions(made))
    plain = dict(flops=0.0, recomputed_flops=0.0, vector_flops=0.0, read_bytes=0, written_bytes=0)
    return replace(found, kind=kind, arithmetic=arithmetic, **plain | numbers)


def test_a_kernel_takes_what_a_gpu_reaches_of_what_bounds_it():
    reached = HOPPER.matmul_share * 989.4e12
    assert CLOCK.kernel(cost(flops=1e12, read_bytes=8)) == pytest.approx(1e12 / reached)
    assert CLOCK.kernel(cost(flops=1.0, read_bytes=3, written_bytes=10**9)) == pytest.approx(
        (10**9 + 3) / (HOPPER.memory_share * 3.35e12)
    )
    assert CLOCK.kernel(cost("elementwise", vector_flops=1e12)) == pytest.approx(1e12 / (HOPPER.matmul_share * 66.9e12))
    float8 = CLOCK.kernel(cost(flops=1e12, arithmetic="float8"))
    assert float8 == pytest.approx(1e12 / (HOPPER.float8_share * 1978.9e12))


def test_fused_attention_takes_as_long_as_in_the_planner():
    device = device_of(CLUSTER.gpu, HOPPER)
    pairs, width = 2.0 * 8 * 4096 * (2048 + 64), 128  # as `flash` counts the diagonal
    both = device.flash(2, 8, 4096, 2048, width, "mosaic")
    for flops, backward, seconds in zip((4, 10), (False, True), both, strict=True):
        kernel = cost("attention", flops=flops * width * pairs, pairs=pairs, backward=backward)
        assert CLOCK.kernel(kernel) == pytest.approx(seconds)


@pytest.mark.parametrize(("gpu", "peak"), [("h100", 494.7e12), ("a100-80", 156e12), ("v100-32", 15.7e12)])
def test_float32_takes_the_tensor_cores_where_they_have_tf32(gpu: str, peak: float):
    there = parse_cluster(f"{gpu}:1x8")
    model = hardware_of(there.gpu)
    found = StepTimer(there.gpu, there, model).kernel(cost(arithmetic="tensorfloat32", flops=1e12))
    assert found == pytest.approx(1e12 / (model.matmul_share * peak))


def test_a_transfer_takes_no_compute_and_a_missing_peak_is_refused():
    assert CLOCK.kernel(cost("collective", flops=1.0)) == 0.0
    ampere = parse_cluster("a100-80:1x8")
    with refused("peak", "float8", "x multiplies", error=ProgramError):
        StepTimer(ampere.gpu, ampere, hardware_of(ampere.gpu)).kernel(cost(arithmetic="float8", flops=1.0))


def moved(line: str) -> Movement:
    """A transfer of 4 MiB on each of eight devices, four to a host."""
    made = module(f"%a = f32[1048576]{{0}} parameter(0)\n%x = {line}", partitions=8)
    (found,) = movements(made, executions(made), {"replica": 2, "fsdp": 4}, 4)
    return found


SIZE = 4 * 2**20


@pytest.mark.parametrize(
    ("groups", "ranks", "in_one_host"), [("[2,4]<=[8]", 4, 4), ("[1,8]<=[8]", 8, 4), ("[4,2]<=[2,4]T(1,0)", 2, 1)]
)
def test_collectives_take_what_the_rings_of_the_planner_take(groups: str, ranks: int, in_one_host: int):
    """Members of a host share its cards; latency and start are in it."""
    ring = NETWORK.group(ranks, in_one_host)
    gather = moved(f"f32[{1048576 * ranks}]{{0}} all-gather(%a), dimensions={{0}}, replica_groups={groups}")
    assert CLOCK.transfer(gather) == ring.gather(SIZE * ranks)
    assert CLOCK.transfer(moved(f"f32[1048576]{{0}} all-reduce(%a), replica_groups={groups}")) == ring.reduce(SIZE)
    scatter = moved(f"f32[{1048576 // ranks}]{{0}} reduce-scatter(%a), dimensions={{0}}, replica_groups={groups}")
    assert CLOCK.transfer(scatter) == ring.gather(SIZE)
    exchange = moved(f"f32[1048576]{{0}} all-to-all(%a), dimensions={{0}}, replica_groups={groups}")
    assert CLOCK.transfer(exchange) == ring.exchange(SIZE)
    if in_one_host == 4 and ranks == 8:
        assert ring.gather(SIZE) > SIZE * 7 / 8 / (4 * 50e9), "four GPUs share four cards"
        assert ring.gather(1e12) == pytest.approx(1e12 * 7 / 8 / (4 * 50e9 * HOPPER.network_share), rel=1e-3)


@pytest.mark.parametrize(("pairs", "in_one_host"), [("{{0,1},{1,0}}", 2), ("{{0,4},{4,0}}", 1)])
def test_permutes_take_a_hop(pairs: str, in_one_host: int):
    found = moved(f"f32[1048576]{{0}} collective-permute(%a), source_target_pairs={pairs}")
    assert CLOCK.transfer(found) == NETWORK.group(2, in_one_host).shift(SIZE)


def test_transfers_between_pods_take_what_they_take_in_the_planner():
    """Every host of four GPUs is a pod: replicas are in two of them, shards in one."""
    cluster = replace(CLUSTER, pods=Pods(1, 7.0))
    timer, network = StepTimer(cluster.gpu, cluster, HOPPER), network_of(cluster, HOPPER)
    for groups, ranks, stride in (("[2,4]<=[8]", 4, 1), ("[1,8]<=[8]", 8, 1), ("[4,2]<=[2,4]T(1,0)", 2, 4)):
        ring = network.ring(ranks, stride)
        reduced = moved(f"f32[1048576]{{0}} all-reduce(%a), replica_groups={groups}")
        assert timer.transfer(reduced) == ring.reduce(SIZE)
        assert (timer.transfer(reduced) > CLOCK.transfer(reduced)) == (ranks != 4)
        exchange = moved(f"f32[1048576]{{0}} all-to-all(%a), dimensions={{0}}, replica_groups={groups}")
        assert timer.transfer(exchange) == ring.exchange(SIZE)
    alone, at_once = 7 / 4, 7.0  # cards that one pair has of its pod, and each of four
    for pairs, slower in (("{{0,1},{1,0}}", 1.0), ("{{0,4},{4,0}}", alone), ("{{0,4},{1,5},{2,6},{3,7}}", at_once)):
        permute = moved(f"f32[1048576]{{0}} collective-permute(%a), source_target_pairs={pairs}")
        extra = (slower - 1) * SIZE / (CLUSTER.bandwidth(True) * HOPPER.network_share)
        assert timer.transfer(permute) == pytest.approx(CLOCK.transfer(permute) + extra)


def test_a_report_takes_its_times_from_the_clock():
    analysis, report = hsdp()
    assert report.compute_seconds == pytest.approx(
        sum(analysis.timer.kernel(each) * each.executions for each in analysis.costs)
    )
    slower = replace(HOPPER, memory_share=HOPPER.memory_share / 2)
    assert replace(analysis, hardware=slower).schedule.clock.step.compute > report.compute_seconds
