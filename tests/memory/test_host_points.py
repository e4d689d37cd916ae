"""Choices of a layer with activations on the host: few, and nearly as fast as the best of all."""

from dataclasses import replace

import pytest

from jaxpar.config.plan import AxisSizes
from jaxpar.config.presets import PRESETS as MODELS
from jaxpar.config.schema import Config, DataConfig
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.recomputation import layer_costs
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.declared import hidden_names
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.host_points import cheapest_with_host, host_points
from jaxpar.memory.pareto import NO_LIMIT, NothingFits, cheapest, layer_frontier, point_of
from jaxpar.memory.remat import Treatment
from tests.memory.shapes import layer_shape

LAYERS = 16
WAITED = 0.13


def costs_of(model: str) -> LayerCosts:
    shape = layer_shape(Config(model=MODELS[model], data=DataConfig(sequence_length=8192)), AxisSizes(fsdp=8), rows=1)
    return replace(layer_costs(LayerCase(shape, "allgather"), parse_cluster("h100:8x8")), waited=WAITED)


def lost(costs: LayerCosts, runs: list[tuple[int, dict]]) -> float:
    return sum(layers * point_of(costs, treatments).seconds for layers, treatments in runs)


def with_host(costs: LayerCosts, device: int, host: int) -> list[tuple[int, dict[str, Treatment]]]:
    """The choice for `LAYERS` layers, where copies under way take no memory."""
    return cheapest_with_host({"all": costs}, ["all"] * LAYERS, lambda _: device, host, {"all": host_points(costs)})


@pytest.mark.parametrize("model", ["llama3-8b", "llama3-70b", "gpt3-175b"])
def test_few_points_are_nearly_as_fast_as_all(model: str):
    """Within 2% of the time of the layers, and with most of what the host gains, where a fifth of all may be there."""
    costs = costs_of(model)
    every = layer_frontier(costs)
    assert len(host_points(costs)) < min(50, len(every))
    kept = LAYERS * sum(costs.sizes.values())
    step = LAYERS * (costs.forward_seconds + costs.backward_seconds)
    for device, host in ((0.1, 0.05), (0.3, 0.2)):
        budgets = int(device * kept), int(host * kept)
        best, alone = (
            lost(costs, cheapest(costs, LAYERS, *budgets, every)),
            lost(costs, cheapest(costs, LAYERS, budgets[0])),
        )
        found = lost(costs, with_host(costs, *budgets))
        assert best <= found <= best + 0.02 * step
        assert alone - found >= 0.6 * (alone - best)


def test_inputs_of_layers_alone_may_be_on_the_host():
    costs = costs_of("llama3-8b")
    ((layers, treatments),) = with_host(costs, 0, LAYERS * costs.sizes["layer_input"])
    assert layers == LAYERS and treatments.pop("layer_input") == "offload"
    assert set(treatments.values()) == {"recompute"}


def test_copies_under_way_take_memory_of_the_device():
    """With twice what a layer offloads on the device, less is offloaded by each, and it still fits."""
    costs = costs_of("llama3-70b")
    points, device = {"all": host_points(costs)}, int(0.1 * LAYERS * sum(costs.sizes.values()))
    runs = cheapest_with_host({"all": costs}, ["all"] * LAYERS, lambda most: device - 2 * most, NO_LIMIT, points)
    each = [point_of(costs, treatments) for layers, treatments in runs for _ in range(layers)]
    assert sum(one.device_bytes for one in each) + 2 * max(one.host_bytes for one in each) <= device
    assert max(one.host_bytes for one in each) > 0


def test_nothing_fits_where_not_even_the_inputs_do():
    costs = costs_of("llama3-8b")
    with pytest.raises(NothingFits) as refused:
        with_host(costs, 0, LAYERS * costs.sizes["layer_input"] - 1)
    assert refused.value.least_bytes > 0


def test_no_copy_is_longer_than_the_forward_that_hides_it():
    costs = replace(costs_of("llama3-8b"), host_bandwidth=costs_of("llama3-8b").host_bandwidth / 4)
    assert max(one.host_bytes for one in host_points(costs)) <= costs.forward_seconds * costs.host_bandwidth
    assert costs.forward_seconds * costs.host_bandwidth < sum(costs.sizes.values())


def test_outputs_of_attention_stay_on_the_device():
    costs = costs_of("gpt3-175b")
    named = [one.named(costs) for one in host_points(costs)]
    assert {one["attention_output"] for one in named} == {"save", "recompute"}
    assert {one["query"] for one in named} == {"save", "recompute", "offload"}


def test_what_is_inside_a_feed_forward_stays_on_the_device():
    """Where it recomputes its first matmuls it is in tiles, which offload nothing (`layout.choices.tiles`)."""
    costs = costs_of("llama3-70b")
    named = [one.named(costs) for one in host_points(costs)]
    for name in hidden_names() & {*costs.sizes}:
        assert {one[name] for one in named} <= {"save", "recompute"}
    assert {one["attention_residual"] for one in named} == {"save", "recompute", "offload"}


def test_copies_that_are_waited_for_cost_their_share():
    costs = costs_of("llama3-8b")
    copy = 1e8 / costs.host_bandwidth
    assert copy < costs.forward_seconds
    assert costs.exposed_seconds(1e8) == pytest.approx(2 * WAITED * copy)
    assert replace(costs, waited=0.0).exposed_seconds(1e8) == 0.0
    assert costs.exposed_seconds(NO_LIMIT) == replace(costs, waited=0.0).exposed_seconds(NO_LIMIT)
