"""Seconds of layers with experts: grouped products against measurements, messages by formula, what slows them."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import Any

import pytest

from jaxpar.config.schema import ModelConfig
from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.cost.expert_exchange import ExpertExchange, added_numbers
from jaxpar.cost.experts import ExpertTimes
from jaxpar.cost.grouped import Products, grouped_gradient, grouped_matmul, share_of
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.layer import LayerTime, layer_time
from jaxpar.cost.layer_case import LayerCase, layer_case
from jaxpar.cost.messages import Network, network_of
from jaxpar.cost.operations import Device, device_of
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.experts.messages import MESSAGES, exchange_of, messages_of, rows_sent
from jaxpar.memory.layer_shape import NO_CODES, ExpertCodes, matmul_bytes
from jaxpar.mesh.quantized.blocks import row_bytes
from jaxpar.planner.layout import Layout
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.step_time.model import step_time, steps_of
from jaxpar.planner.step_time.overlap import BESIDE

CLUSTER = named_cluster("h100:2x8")
MODEL = ModelConfig(
    layers=4, embed=2048, heads=16, kv_heads=4, mlp=4096, vocab=32000,
    experts=ExpertsConfig(count=64, per_token=4, width=1024, shared=1),
)  # fmt: skip


def h100() -> Device:
    cluster = parse_cluster("h100:1x8")
    return device_of(cluster.gpu, hardware_of(cluster.gpu))


def case_of(expert: int, exchange: str = "all_to_all", capacity: float = 1.0, **other: Any) -> LayerCase:
    return layer_case(
        MODEL, 4096, 2, other.pop("tensor", 1), other.pop("context", 1), "allgather", "bfloat16", expert=expert,
        exchange=exchange, capacity=capacity, **other,
    )  # fmt: skip


def times_of(case: LayerCase, cluster: str = "h100:2x8") -> ExpertTimes:
    there = parse_cluster(cluster)
    model = hardware_of(there.gpu)
    return ExpertTimes(replace(case, slices=1), device_of(there.gpu, model), network_of(there, model))


# rows, k, n, groups, milliseconds: tokamax, data/autotuning/nvidia_h100_80gb_hbm3/pallas_mosaic_gpu_ragged_dot.json at
# 478d7b6 (medians of five): products with matrices, and with transposed ones.
MEASURED = [
    (262144, 7168, 2048, 256, 23.317), (327680, 2880, 2880, 128, 16.212), (393216, 2048, 768, 128, 2.737),
    (393216, 768, 2048, 128, 3.142), (327680, 2880, 2880, 128, 17.996), (393216, 768, 2048, 128, 3.381),
    (393216, 2048, 768, 128, 3.017), (524288, 1536, 4096, 128, 15.439), (524288, 4096, 1536, 128, 16.127),
]  # fmt: skip


def test_products_of_many_groups_take_what_was_measured_on_average():
    ratios = [
        1e3 * grouped_matmul(h100(), rows, groups, n, k, 2) / measured for rows, k, n, groups, measured in MEASURED
    ]
    assert exp(sum(map(log, ratios)) / len(ratios)) == pytest.approx(1.0, abs=0.05)
    assert all(0.6 < ratio < 1.45 for ratio in ratios), ratios


def test_products_of_few_large_groups_are_dense_matmuls():
    device, rows, n, k = h100(), 8 * 16384, 14336, 4096
    assert grouped_matmul(device, rows, 8, n, k, 2) == pytest.approx(device.matmul(rows, n, k), rel=0.05)
    gradient = grouped_gradient(device, rows, 8, n, k, 8, 2)
    assert gradient == pytest.approx(device.matmul(k, n, rows // 8, 8, 8), rel=0.05)


def test_smaller_groups_are_slower_and_empty_ones_read_their_matrix():
    device, same = h100(), dict(n=1024, k=2048, item=2)
    seconds = [grouped_matmul(device, 65536, groups, **same) for groups in (1, 8, 32, 128, 1024, 4096)]
    assert seconds == sorted(seconds) and seconds[0] < seconds[-1]
    assert grouped_matmul(device, 0, 4096, **same) >= device.bytes_seconds(4096 * 2048 * 1024 * 2)
    assert [share_of(groups) for groups in (1, 8, 128, 256)] == [1.0, 1.0, 0.73, 0.73]


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
    exposed = ExpertTimes(replace(case, slices=1), h100(), slow).exposed
    assert exposed == pytest.approx((2 * sent * own / rate,) * 2, rel=1e-6), "to the experts and back"
    in_codes = case_of(4, exchange, 1.5, tensor=tensor, context=context, exchange_dtype="float8_e4m3fn")
    row = row_bytes(MODEL.embed, "float8_e4m3fn") * case.shape.part_tokens
    times = ExpertTimes(replace(in_codes, slices=1), h100(), slow)
    assert times.exposed == pytest.approx((sent * (row + own) / rate, exposed[1]), rel=1e-6), "the way out alone"
    assert times.exposed[0] * times.outward == pytest.approx(sent * row / rate, rel=1e-6)


def test_nothing_is_sent_where_experts_are_not_split():
    for exchange in MESSAGES:
        assert messages_of(exchange, ExpertsConfig(count=8), 2.0, 1, 1) == ()
    assert times_of(case_of(1)).exposed == (0.0, 0.0)
    assert exchange_of("auto", ExpertsConfig(count=8), 2.0, 1, 1)[0] in MESSAGES


def test_the_fullest_rank_decides_and_further_rounds_send_again():
    even, fuller, twice = (times_of(case_of(8, capacity=1.5, imbalance=factor)) for factor in (1.0, 1.5, 1.6))
    assert fuller.rows == 1.5 * even.rows
    assert fuller.exposed == even.exposed
    assert all(a > 2 * b for a, b in zip(twice.exposed, even.exposed, strict=True)), "no shared expert hides the second"
    assert twice.combined_bytes == 2 * even.combined_bytes
    alone = times_of(case_of(1, imbalance=3.0))
    assert alone.rows == times_of(case_of(1)).rows
    assert times_of(case_of(2, imbalance=64.0)).rows == 2 * times_of(case_of(2)).rows


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


def test_gradients_of_experts_are_summed_over_the_other_data_ranks_alone():
    """All of 64 GPUs hold other experts: what their gradients cost is not counted."""
    model = replace(MODEL, layers=2)
    split, shared = (step("h100:8x8", model, zero=0, expert=n, fsdp=1, replica=64 // n) for n in (64, 8))
    assert split.breakdown["data"] < 0.25 * shared.breakdown["data"]
    assert split.breakdown["optimizer"] < 0.75 * shared.breakdown["optimizer"]


def test_a_split_backward_leaves_the_gradients_of_attention_alone_to_w():
    """Those of experts are computed with the gradients of their rows, so nothing of theirs is kept for W."""
    narrow, wide = case_of(4), case_of(4)
    wide = replace(wide, shape=replace(wide.shape, model=replace(MODEL, experts=ExpertsConfig(64, 4, 4096, shared=1))))
    network = network_of(parse_cluster("h100:2x8"), hardware_of(parse_cluster("h100:2x8").gpu))
    one, other = (layer_time(case, h100(), network) for case in (narrow, wide))
    assert 0 < one.weight == other.weight
    assert one.backward.seconds < other.backward.seconds
    assert 0 < matmul_bytes(narrow.shape) == matmul_bytes(wide.shape)


def test_mfu_counts_the_experts_that_a_token_uses():
    experts = MODEL.experts
    assert experts is not None
    more = replace(MODEL, experts=replace(experts, count=128))
    one, other = step(), step(model=more)
    assert one.mfu * one.seconds == pytest.approx(other.mfu * other.seconds, rel=0.01)


# ---- slices


def sliced(number: int, cluster: str = "h100:2x8", **other: Any) -> tuple[float, float]:
    """Seconds that messages add forward and backward, of links that start at once and slow no product."""
    model, network = without_starts(cluster)
    case = case_of(8, slices=number, **other)
    return ExpertTimes(case, device_of(parse_cluster(cluster).gpu, model), network).exposed


def without_starts(cluster: str = "h100:2x8") -> tuple[HardwareModel, Network]:
    there = parse_cluster(cluster)
    model = replace(hardware_of(there.gpu), overlap_slowdown=0.0, message_seconds=0.0)
    return model, replace(network_of(there, model), inside_latency=0.0, outside_latency=0.0)


def test_slices_hide_messages_beside_products():
    """Of many slices the first one's way out is left forward, and hardly anything backward."""
    whole, halves, many = (sum(sliced(number, own_rows="exchanged")) for number in (1, 2, 8))
    assert many < halves < whole < sum(times_of(case_of(8)).exposed)
    first = ExpertExchange(case_of(8).shape).message(without_starts()[1], 8)
    assert sliced(8, own_rows="exchanged") == pytest.approx((first, 0.0), abs=0.2 * first)


def test_own_rows_hide_the_first_slice_and_cost_one_more_sum_of_gradients():
    """Products of as many rows, and one more number of each weight that is read."""
    (exchanged, _), (first, _) = (sliced(2, own_rows=own) for own in ("exchanged", "first"))
    own = ExpertExchange(case_of(8).shape).own_products(on_h100s()[0], True)
    assert exchanged - first == pytest.approx(own.forward)
    parts = added_numbers(2, own_first=True) - added_numbers(2, own_first=False)
    assert parts == 1 and not ExpertExchange(case_of(8, tensor=2).shape).own_first(*on_h100s(), 2)


def test_own_rows_go_first_where_that_is_expected_to_take_less():
    exchange, on = ExpertExchange(case_of(8).shape), on_h100s()
    by_choice = {first: exchange.seconds(*on, 2, first=first) for first in (True, False)}
    assert exchange.own_first(*on, 2) == (by_choice[True] < by_choice[False])
    assert exchange.seconds(*on, 2) == min(by_choice.values())
    asked = {own: replace(exchange, own_rows=own).own_first(*on, 2) for own in ("first", "exchanged")}
    assert asked == {"first": True, "exchanged": False} and not exchange.own_first(*on, 1)


def on_h100s() -> tuple[Device, Network]:
    model, network = without_starts()
    return device_of(parse_cluster("h100:2x8").gpu, model), network


def test_where_links_are_slow_messages_wait_for_each_other():
    """A stage ends with the longer of its products and its two messages: nothing is hidden twice."""
    model, network = without_starts()
    device, slow = device_of(parse_cluster("h100:2x8").gpu, model), replace(network, inside=1e9)
    exchange = ExpertExchange(case_of(8).shape)
    send, work = exchange.message(slow, 4), exchange.products(device, 4)
    both = sum(ExpertTimes(case_of(8, slices=4), device, slow).exposed)
    hidden = 16 * send - both
    assert 0 < hidden < 4 * (work.forward + work.backward) + 2 * send


def test_an_exchange_in_two_levels_has_a_second_hop():
    """On two hosts of 4 ranks each, rows that change hosts are sent once more inside one."""
    _, free = without_starts("h100:2x4")
    plain, levels = (ExpertExchange(case_of(8, name).shape) for name in ("all_to_all", "hierarchical"))
    assert levels.message(free) > plain.message(free), "more bytes"
    slow = replace(free, outside_latency=1e-3)
    more = lambda exchange: exchange.message(slow) - exchange.message(free)
    assert more(levels) == pytest.approx(more(plain)), "and no more messages between hosts"
    one, other = (step("h100:2x4", fsdp=1, expert_exchange=name) for name in ("all_to_all", "hierarchical"))
    assert other.breakdown["exchange"] > one.breakdown["exchange"]


def test_a_step_is_timed_with_the_slices_that_are_asked_for():
    """The layers of `auto` take least: products of small slices are slower, and messages wait for less."""
    steps = {number: step(expert_slices=number, zero=1, microbatch=2) for number in (1, 2, 4, "auto")}
    assert steps[4].breakdown["exchange"] < steps[1].breakdown["exchange"]
    assert steps[4].breakdown["matmuls"] > steps[1].breakdown["matmuls"]
    assert steps["auto"].seconds == min(one.seconds for one in steps.values()) == steps[2].seconds


def layer(number: int) -> tuple[LayerTime, ExpertExchange, Network]:
    """A layer in so many slices, its exchange and the links of two hosts of 8 H100s."""
    there, case = parse_cluster("h100:2x8"), case_of(8, slices=number)
    network = network_of(there, hardware_of(there.gpu))
    return layer_time(case, h100(), network), ExpertExchange(case.shape), network


def test_messages_of_slices_are_waited_for_or_beside_compute():
    """All four ways, without the small messages ahead: nothing is counted twice, nor forgotten."""
    time, exchange, network = layer(4)
    send, starts = exchange.message(network, 4), 2 * 2 * network.ring(8, 1).exchange(1)
    assert time.forward.beside > time.forward.exchange and time.backward.beside > time.backward.exchange
    assert time.forward.sends + time.backward.sends == pytest.approx(16 * send + starts, rel=1e-6)


def test_rows_that_are_sent_again_wait_as_they_are_tied_to_nothing():
    """Two of four slices, where the way out of the forward waits for little more than one."""
    time, exchange, network = layer(4)
    again, send = time.again(frozenset({"expert_input"})), exchange.message(network, 4)
    assert again.exchange == pytest.approx(2 * send + network.ring(8, 1).exchange(1), rel=1e-6)
    assert again.sends == pytest.approx(time.operations["expert_input"].sends)
    assert time.again(frozenset({"expert_up"})).sends == 0


def test_weights_take_the_place_of_two_messages_each_way():
    """Or of one, where they are as short; what is waited for is no longer hidden."""
    time, exchange, network = layer(4)
    send = exchange.message(network, 4)
    assert time.beside_weights(0.0, 0.0) == (time.forward, time.backward)
    forward, backward = time.beside_weights(send, 1.0)
    assert forward.exchange - time.forward.exchange == pytest.approx(send)
    assert backward.exchange - time.backward.exchange == pytest.approx(2 * send)
    assert (forward.sends, backward.sends) == pytest.approx((time.forward.sends, time.backward.sends))


def test_weights_travel_beside_compute_that_no_tokens_travel_beside():
    """One message is in flight at a time: 4 s of 10 are left, a part of which hides messages of weights."""
    layout = Layout(expert=8, fsdp=2, zero=3, remat="gemm_last", expert_capacity=1.0)
    one = steps_of(MODEL, 4096, 64, CLUSTER, hardware=without_starts()[0]).step(layout)
    assert one._beside(10.0, 6.0) == pytest.approx(16.0 - 10.0 * BESIDE)
    assert one._beside(10.0, 6.0, sends=6.0) == pytest.approx(16.0 - 4.0 * BESIDE)


# ---- FP8

BOTH = ("experts_in", "experts_out")


def layer_in(codes: ExpertCodes) -> LayerTime:
    there = parse_cluster("h100:2x8")
    model = hardware_of(there.gpu)
    case = case_of(1, expert_codes=codes)
    return layer_time(case, device_of(there.gpu, model), network_of(there, model))


def test_experts_in_fp8_take_the_casts_more_where_no_kernel_multiplies_codes():
    """Products are as long, and the passes over rows, matrices and gradients are added: 4 bytes of each number."""
    plain, quantised = layer_in(NO_CODES), layer_in(ExpertCodes(BOTH))
    assert quantised.forward.matmul == plain.forward.matmul and quantised.backward.matmul == plain.backward.matmul
    rows, embed, width, experts = 2 * 4096 * 4, 2048, 1024, 64
    forward = 4 * (rows * (embed + width) + experts * 3 * embed * width)
    seconds = quantised.forward.other - plain.forward.other
    assert seconds == pytest.approx(h100().bytes_seconds(forward), rel=1e-6)
    backward = quantised.backward.other - plain.backward.other
    assert backward == pytest.approx(h100().bytes_seconds(4 * rows * (2 * width + embed)), rel=1e-6)


def test_kernels_multiply_products_of_experts_in_fp8():
    """Outputs and gradients of rows at the rate of 8 bits, and nothing else; gradients of matrices where one does."""
    plain, kernel = layer_in(NO_CODES), layer_in(ExpertCodes(BOTH, by_kernel=True))
    assert kernel.weight == plain.weight
    rows, embed, width, device = 2.0 * 4096 * 4, 2048, 1024, h100()
    saved = lambda n, k: grouped_matmul(device, rows, 64, n, k, 2) - grouped_matmul(device, rows, 64, n, k, 2, 1)
    inward, outward = saved(width, embed), saved(embed, width)
    assert inward > 0.2 * grouped_matmul(device, rows, 64, width, embed, 2)
    assert plain.forward.matmul - kernel.forward.matmul == pytest.approx(2 * inward + outward)
    assert plain.backward.matmul - kernel.backward.matmul == pytest.approx(2 * outward + inward)
    assert kernel.forward.other == layer_in(ExpertCodes(BOTH)).forward.other
    two, three = (
        times_of(case_of(1, expert_codes=ExpertCodes(BOTH, by_kernel=True, gradients_by_kernel=by_kernel)))
        for by_kernel in (False, True)
    )
    (same, as_numbers), (inwards, as_codes) = (own.gradients(width, embed, "experts_in", 2.0) for own in (two, three))
    assert same == inwards and as_codes < 0.9 * as_numbers
    slices = [ExpertExchange(own.shape).products(device, 4) for own in (two, three)]  # what their number is chosen by
    assert slices[0].inward == slices[1].inward and slices[1].weights < 0.9 * slices[0].weights
    one = layer_in(ExpertCodes(("experts_out",), by_kernel=True))
    assert plain.forward.matmul - one.forward.matmul == pytest.approx(outward)


def test_a_loop_over_blocks_multiplies_as_often_as_it_goes_round():
    """512 rows at a time, half of a block empty for each expert; every turn reads its expert's matrix."""
    device, rows, n, k = h100(), 65536.0, 14336, 4096
    kernel, loop = (Products(device, 8, 2, loop) for loop in (False, True))
    assert loop.matmul(rows, n, k) > kernel.matmul(rows, n, k) and loop.matmul(0, n, k) == 0.0
    assert loop.gradient(rows, n, k, 2, 2) > 1.5 * kernel.gradient(rows, n, k, 2, 2)
    once = loop.matmul(2 * rows, n, k) - loop.matmul(rows, n, k)
    assert once == pytest.approx(128 * (device.matmul(512, n, k, 1, 4) + device.bytes_seconds(512 * n * 6.0)))
