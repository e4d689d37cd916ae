"""Seconds of kernels and transfers: those of the planner's model of GPUs and links."""

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from jaxpar.compiler.program.attribution import Movement, movements
from jaxpar.compiler.program.costs.matmuls import Matmul, Product
from jaxpar.compiler.program.costs.ops import Cost, costs
from jaxpar.compiler.program.hlo.records import ProgramError
from jaxpar.compiler.program.loops import executions
from jaxpar.compiler.report.step_timer import StepTimer
from jaxpar.cost.grouped import Products
from jaxpar.cost.hardware_model import BLACKWELL, HOPPER
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.hardware.cluster import Pods, parse_cluster
from jaxpar.pages.units import GIGA
from tests.compiler.program.programs import module

CLUSTER = parse_cluster("h100:2x4")
CLOCK = StepTimer(CLUSTER.gpu, CLUSTER, HOPPER)


def cost(kind: str = "matmul", *products: Product, **numbers: Any) -> Cost:
    made = module("%a = f32[8]{0} parameter(0)\n%x = f32[8]{0} negate(%a)")
    (found,) = costs(made, executions(made))
    plain = dict(recomputed_flops=0.0, vector_flops=0.0, read_bytes=0, written_bytes=0)
    return replace(found, kind=kind, products=products, **plain | numbers)


def matmul(m: int, n: int, k: int, arithmetic: str = "bfloat16", out_bytes: float = 2) -> Product:
    return Product(2.0 * m * n * k, 0.0, arithmetic, Matmul(m, n, k, 1, out_bytes))


WIDE = 128 * 132 * 8, 8192, 2**16
"""Whole waves of whole tiles, of a long inner dim."""


def test_a_kernel_takes_what_a_gpu_reaches_of_what_bounds_it():
    for arithmetic, reached in (
        ("bfloat16", HOPPER.matmul_share * 989.4e12),
        ("float8", HOPPER.float8_share * 1978.9e12),
        ("tensorfloat32", HOPPER.matmul_share * 494.7e12),
        ("float32", HOPPER.matmul_share * 66.9e12),
    ):
        seconds = CLOCK.kernel(cost("matmul", matmul(*WIDE, arithmetic), read_bytes=8))
        assert seconds == pytest.approx(2 * prod(WIDE) / reached, rel=2 * HOPPER.matmul_ramp / WIDE[2])
    assert CLOCK.kernel(cost("matmul", matmul(8, 8, 8), read_bytes=3, written_bytes=10**9)) == pytest.approx(
        (10**9 + 3) / (HOPPER.memory_share * 3.35e12)
    )
    assert CLOCK.kernel(cost("elementwise", vector_flops=1e12)) == pytest.approx(1e12 / (HOPPER.matmul_share * 66.9e12))
    with pytest.raises(ProgramError, match="float64"):
        CLOCK.kernel(cost("matmul", matmul(8, 8, 8, "float64")))


@pytest.mark.parametrize("shape", [(1000, 4096, 1030), (8192, 51, 768), (64, 64, 64)])
def test_odd_shapes_take_what_they_take_in_a_layout(shape: tuple[int, int, int]):
    """Tiles that are not full, dims that are not aligned, short sums; and operands that memory bounds."""
    m, n, k = shape
    dot = "dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    inputs = f"%a = bf16[{m},{k}]{{1,0}} parameter(0)\n%b = bf16[{k},{n}]{{1,0}} parameter(1)"
    made = module(f"{inputs}\n%x = f32[{m},{n}]{{1,0}} {dot}")
    (found,) = costs(made, executions(made))
    assert CLOCK.kernel(found) == device_of(CLUSTER.gpu, HOPPER).matmul(m, n, k, 1, 4)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_grouped_matmul_takes_what_it_takes_in_a_layout(gradient: bool):
    cluster = parse_cluster("b200:1x8")
    timer, groups, rows, n, k = StepTimer(cluster.gpu, cluster, BLACKWELL), 16, 32768, 256, 1024
    right, out = (f"{rows},{n}", f"{groups},{k},{n}") if gradient else (f"{groups},{k},{n}", f"{rows},{n}")
    call = 'custom-call(%a, %b), custom_call_target="mosaic_gpu_v2"'
    name = f"grouped_matmul.rows{rows // 2}/grouped_matmul_of_{'weights' if gradient else 'rows'}"
    made = module(
        f"%a = bf16[{rows},{k}]{{1,0}} parameter(0)\n%b = bf16[{right}] parameter(1)\n"
        f'%x = bf16[{out}] {call}, metadata={{op_name="jit(f)/{name}/pallas_call"}}'
    )
    (found,) = costs(made, executions(made))
    times = Products(timer.device, groups, 2)
    expected = times.gradient(rows / 2, n, k, 2, 2) if gradient else times.matmul(rows / 2, n, k)
    assert timer.product(found.products[0]) == expected


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
