"""Seconds of layers with experts: grouped products against measurements, messages by formula, what slows them."""

from dataclasses import replace
from math import exp, log
from typing import Any

import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.cost.experts import Experts
from jaxpar.cost.grouped import Products
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.layer_case import LayerCase, layer_cases
from jaxpar.cost.layout import Layout
from jaxpar.cost.messages import Network, network_of
from jaxpar.cost.operations import Device, device_of
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.experts.messages import MESSAGES, rows_sent
from jaxpar.memory.layer_shape import NOT_QUANTIZED, ExpertQuantization
from jaxpar.mesh.quantized.blocks import row_bytes
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.step_time.model import step_time

MODEL = ModelConfig(
    layers=4, embed=2048, heads=16, kv_heads=4, mlp=4096, vocab=32000,
    experts=ExpertsConfig(count=64, per_token=4, width=1024, shared=1),
)  # fmt: skip


def h100() -> Device:
    cluster = parse_cluster("h100:1x8")
    return device_of(cluster.gpu, hardware_of(cluster.gpu))


def case_of(expert: int, exchange: str = "all_to_all", capacity: float = 1.0, **other: Any) -> LayerCase:
    layout = Layout(expert=expert, expert_exchange=exchange, expert_capacity=capacity, microbatch=2, **other)
    return layer_cases(MODEL, 4096, layout)["all"]


# rows, k, n, groups, milliseconds: tokamax, data/autotuning/nvidia_h100_80gb_hbm3/pallas_mosaic_gpu_ragged_dot.json at
# 478d7b6 (medians of five): products with matrices, and with transposed ones.
MEASURED = [
    (262144, 7168, 2048, 256, 23.317), (327680, 2880, 2880, 128, 16.212), (393216, 2048, 768, 128, 2.737),
    (393216, 768, 2048, 128, 3.142), (327680, 2880, 2880, 128, 17.996), (393216, 768, 2048, 128, 3.381),
    (393216, 2048, 768, 128, 3.017), (524288, 1536, 4096, 128, 15.439), (524288, 4096, 1536, 128, 16.127),
]  # fmt: skip


def test_products_of_many_groups_take_what_was_measured_on_average():
    ratios = [
        1e3 * Products(h100(), groups, 2).matmul(rows, n, k) / measured for rows, k, n, groups, measured in MEASURED
    ]
    assert exp(sum(map(log, ratios)) / len(ratios)) == pytest.approx(1.0, abs=0.05)
    assert all(0.6 < ratio < 1.45 for ratio in ratios), ratios


@pytest.mark.parametrize("exchange", MESSAGES)
@pytest.mark.parametrize(("tensor", "context"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_an_exchange_takes_the_bytes_of_its_formula_over_the_link_of_its_ranks(
    exchange: str, tensor: int, context: int
):
    """On links so slow that nothing else counts: bytes of the formula at the share of the link that is reached."""
    case = case_of(4, exchange, 1.5, tensor=tensor, context=context)
    there = parse_cluster("h100:1x16")
    network = network_of(there, hardware_of(there.gpu))
    slow = replace(network, inside=1e3, inside_latency=0.0)
    assert MODEL.experts is not None
    sent = rows_sent(exchange, MODEL.experts, 1.5, 4, tensor)
    own = case.shape.part_tokens * case.embed * case.item
    rate = 1e3 * slow.model.node_share
    exposed = Experts(case.shape, h100(), slow, 1).exposed
    assert exposed == pytest.approx((2 * sent * own / rate,) * 2, rel=1e-6), "to the experts and back"
    in_codes = case_of(4, exchange, 1.5, tensor=tensor, context=context, exchange_dtype="float8_e4m3fn")
    row = row_bytes(MODEL.embed, "float8_e4m3fn") * case.shape.part_tokens
    times = Experts(in_codes.shape, h100(), slow, 1)
    assert times.exposed == pytest.approx((sent * (row + own) / rate, exposed[1]), rel=1e-6), "the way out alone"
    assert times.exposed[0] * times.outward_share == pytest.approx(sent * row / rate, rel=1e-6)


def step(cluster: str = "h100:2x8", model: ModelConfig = MODEL, **layout: Any) -> Any:
    layout = {"expert": 8, "fsdp": 2, "zero": 3, "remat": "gemm_last", "expert_capacity": 1.0} | layout
    return step_time(model, 4096, 64, Layout(**layout), named_cluster(cluster))


def test_a_step_is_slower_with_less_balance_and_more_room():
    least = step().seconds
    assert least < step(imbalance=1.2).seconds < step(imbalance=2.0).seconds
    assert least < step(expert_capacity=2.0).seconds
    assert step(expert_capacity=2.0, imbalance=2.0).seconds < step(imbalance=2.0).seconds, "one round, not two"


def test_a_faster_link_inside_a_node_or_between_nodes_is_never_slower():
    layouts: tuple[dict[str, Any], ...] = (
        {},
        {"expert": 16, "fsdp": 1},
        {"tensor": 2, "expert": 4},
        {"expert": 1, "fsdp": 16},
    )
    for layout in layouts:
        assert step("h200:2x8", **layout).seconds <= step("h800:2x8", **layout).seconds
    across, inside = step(expert=16, fsdp=1), step()
    assert across.breakdown["exchange"] > 2 * inside.breakdown["exchange"], "half of the rows leave the node"


def test_dense_models_have_experts_axis_as_data_parallelism():
    dense = replace(MODEL, experts=None)
    one, other = step(model=dense), step(model=dense, expert=1, fsdp=16, imbalance=3.0)
    assert one.seconds == other.seconds
    assert one.breakdown["exchange"] == 0.0


def test_a_step_is_timed_with_the_slices_that_are_asked_for():
    """The layers of `auto` take least: products of small slices are slower, and messages wait for less."""
    steps = {number: step(expert_slices=number, zero=1, microbatch=2) for number in (1, 2, 4, "auto")}
    assert steps[4].breakdown["exchange"] < steps[1].breakdown["exchange"]
    assert steps[4].breakdown["matmuls"] > steps[1].breakdown["matmuls"]
    assert steps["auto"].seconds == min(one.seconds for one in steps.values()) == steps[2].seconds


def test_products_of_experts_in_fp8_take_less_where_a_kernel_multiplies_codes():
    both = ("experts_in", "experts_out")
    options = NOT_QUANTIZED, ExpertQuantization(both), ExpertQuantization(both, by_kernel=True)
    plain, cast, kernel = (step(expert_quantization=codes).breakdown for codes in options)
    assert kernel["matmuls"] < 0.95 * cast["matmuls"] and cast["matmuls"] == pytest.approx(plain["matmuls"])
    assert cast["other"] > plain["other"], "passes that write codes"


def times_of(case: LayerCase, cluster: str = "h100:2x8") -> Experts:
    there = parse_cluster(cluster)
    model = hardware_of(there.gpu)
    return Experts(case.shape, device_of(there.gpu, model), network_of(there, model), 1)


def test_the_fullest_rank_decides_and_further_rounds_send_again():
    even, fuller, twice = (times_of(case_of(8, capacity=1.5, imbalance=factor)) for factor in (1.0, 1.5, 1.6))
    assert fuller.rows == 1.5 * even.rows
    assert fuller.exposed == even.exposed
    assert all(a > 2 * b for a, b in zip(twice.exposed, even.exposed, strict=True)), "no shared expert hides the second"
    assert twice.row_bytes == 2 * even.row_bytes
    alone = times_of(case_of(1, imbalance=3.0))
    assert alone.rows == times_of(case_of(1)).rows
    assert times_of(case_of(2, imbalance=64.0)).rows == 2 * times_of(case_of(2)).rows


def without_starts(cluster: str = "h100:2x8") -> tuple[HardwareModel, Network]:
    there = parse_cluster(cluster)
    model = replace(hardware_of(there.gpu), overlap_slowdown=0.0, message_seconds=0.0)
    return model, replace(network_of(there, model), inside_latency=0.0, outside_latency=0.0)


def test_own_rows_go_first_where_that_is_expected_to_take_less():
    experts = Experts(case_of(8).shape, *on_h100s())
    by_choice = {first: experts.seconds(2, first=first) for first in (True, False)}
    assert experts.local_first(2) == (by_choice[True] < by_choice[False])
    assert experts.seconds(2) == min(by_choice.values())
    asked = {own: replace(experts, own_rows=own).local_first(2) for own in ("first", "exchanged")}
    assert asked == {"first": True, "exchanged": False} and not experts.local_first(1)


def on_h100s() -> tuple[Device, Network]:
    model, network = without_starts()
    return device_of(parse_cluster("h100:2x8").gpu, model), network


def test_an_exchange_in_two_levels_has_a_second_hop():
    """On two hosts of 4 ranks each, rows that change hosts are sent once more inside one."""
    _, free = without_starts("h100:2x4")
    plain, levels = (Experts(case_of(8, name).shape, h100(), free) for name in ("all_to_all", "hierarchical"))
    assert levels.message() > plain.message(), "more bytes"
    slow = replace(free, outside_latency=1e-3)
    more = lambda experts: replace(experts, network=slow).message() - experts.message()
    assert more(levels) == pytest.approx(more(plain)), "and no more messages between hosts"
    one, other = (step("h100:2x4", fsdp=1, expert_exchange=name) for name in ("all_to_all", "hierarchical"))
    assert other.breakdown["exchange"] > one.breakdown["exchange"]
