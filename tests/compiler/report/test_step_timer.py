"""Seconds of kernels and transfers: those of the planner's model of GPUs and links."""

from dataclasses import replace
from typing import Any

import pytest

from jaxpar.compiler.program.attribution import Movement, movements
from jaxpar.compiler.program.costs.ops import Cost, costs
from jaxpar.compiler.program.loops import executions
from jaxpar.compiler.report.step_timer import StepTimer
from jaxpar.cost.hardware_model import BLACKWELL, HOPPER
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.hardware.cluster import Pods, parse_cluster
from jaxpar.pages.units import GIGA
from pallas_kernels import bounds
from pallas_kernels.expected import B200
from tests.compiler.program.programs import module

CLUSTER = parse_cluster("h100:2x4")
CLOCK = StepTimer(CLUSTER.gpu, CLUSTER, HOPPER)


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


def test_a_grouped_matmul_is_bound_as_in_the_planner():
    """On a B200 by its caches; other products of the same size are not."""
    cluster = parse_cluster("b200:1x8")
    timer = StepTimer(cluster.gpu, cluster, BLACKWELL)
    plain = cost(flops=1e12)
    made = module("%a = bf16[4,256]{1,0} parameter(0)\n%x = bf16[4,256]{1,0} negate(%a)")
    (wide,) = costs(made, executions(made))
    named = replace(plain, op=replace(wide.op, op_name="jit(f)/grouped_matmul_of_rows"))
    assert timer.kernel(named) == pytest.approx(1e12 / bounds.grouped(256, B200))
    assert timer.kernel(plain) == pytest.approx(1e12 / (BLACKWELL.matmul_share * 2250e12))
    assert timer.kernel(plain) < timer.kernel(named)


def moved(line: str) -> Movement:
    """A transfer of 4 MiB on each of eight devices, four to a host."""
    made = module(f"%a = f32[1048576]{{0}} parameter(0)\n%x = {line}", partitions=8)
    (found,) = movements(made, executions(made), {"replica": 2, "fsdp": 4}, 4)
    return found


SIZE = 4 * 2**20


@pytest.mark.parametrize("pods", [None, Pods(1, 7.0)], ids=["one network", "a pod is a host"])
@pytest.mark.parametrize(
    ("groups", "ranks", "stride"), [("[2,4]<=[8]", 4, 1), ("[1,8]<=[8]", 8, 1), ("[4,2]<=[2,4]T(1,0)", 2, 4)]
)
def test_collectives_take_what_the_rings_of_the_planner_take(pods: Pods | None, groups: str, ranks: int, stride: int):
    """Members of a host share its cards; latency and start are in it."""
    cluster = replace(CLUSTER, pods=pods)
    timer, ring = StepTimer(cluster.gpu, cluster, HOPPER), network_of(cluster, HOPPER).ring(ranks, stride)
    for opcode, numbers, seconds in (
        ("all-gather", 1048576 * ranks, ring.gather(SIZE * ranks)),
        ("all-reduce", 1048576, ring.reduce(SIZE)),
        ("reduce-scatter", 1048576 // ranks, ring.gather(SIZE)),
        ("all-to-all", 1048576, ring.exchange(SIZE)),
    ):
        movement = moved(f"f32[{numbers}]{{0}} {opcode}(%a), dimensions={{0}}, replica_groups={groups}")
        assert timer.transfer(movement) == seconds
        assert opcode != "all-reduce" or pods is None or (seconds > CLOCK.transfer(movement)) == (ranks != 4)


@pytest.mark.parametrize(
    ("pairs", "slower"), [("{{0,1},{1,0}}", 1.0), ("{{0,4},{4,0}}", 7 / 4), ("{{0,4},{1,5},{2,6},{3,7}}", 7.0)]
)
def test_permutes_between_pods_have_their_share_of_the_uplinks(pairs: str, slower: float):
    """One pair has 4/7 of a card of its pod, and each of four a seventh."""
    cluster = replace(CLUSTER, pods=Pods(1, 7.0))
    permute = moved(f"f32[1048576]{{0}} collective-permute(%a), source_target_pairs={pairs}")
    extra = (slower - 1) * SIZE / (CLUSTER.bandwidth(True) * HOPPER.network_share)
    timer = StepTimer(cluster.gpu, cluster, HOPPER)
    assert timer.transfer(permute) == pytest.approx(CLOCK.transfer(permute) + extra)


def test_the_link_between_groups_of_hosts_is_taken_by_what_crosses_it():
    """Devices 0 to 7 are in one group of two hosts, and 8 to 15 in the other."""
    group = replace(CLUSTER.groups[0], hosts=2)
    slow = replace(group.network, bandwidth=GIGA)
    cluster = replace(CLUSTER, groups=(group, replace(group, name="other")), written_between=slow)
    timer = StepTimer(cluster.gpu, cluster, HOPPER)

    def seconds(rows: str, axis: str) -> float:
        reduced = f"f32[1048576]{{0}} all-reduce(%a), dimensions={{0}}, replica_groups={{{rows}}}"
        made = module(f"%a = f32[1048576]{{0}} parameter(0)\n%x = {reduced}", partitions=16)
        (found,) = movements(made, executions(made), {"islands": 2, "replica": 2, "fsdp": 4}, 4)
        assert found.axis == axis
        return timer.transfer(found)

    inside = ",".join(f"{{{low},{low + 4}}}" for low in (0, 1, 2, 3, 8, 9, 10, 11))
    across = ",".join(f"{{{low},{low + 8}}}" for low in range(8))
    network = network_of(replace(CLUSTER, groups=(replace(group, hosts=4),)), HOPPER)
    assert seconds(inside, "replica") == pytest.approx(network.ring(2, 4).reduce(SIZE))
    assert seconds(across, "islands") == pytest.approx(SIZE / (GIGA * network.share(2)), rel=0.1)
