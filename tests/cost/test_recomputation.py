"""Costs of making activations again, from the layer times that predict a step."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from jaxpar.config.presets import PRESETS
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.layer import LayerTime, layer_time
from jaxpar.cost.layer_case import LayerCase, layer_cases
from jaxpar.cost.layout import Layout
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.cost.recomputation import layer_costs
from jaxpar.cost.work import Work
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.layer_shape import LayerShape, activation_bytes
from jaxpar.pages.units import MIB
from tests.memory.shapes import changed, shape_of

SHAPE = shape_of(rows=2, sequence=1024, embed=512, heads=8, kv_heads=2, head_dim=64, mlp=1536, context=2, tensor=2)
CLUSTER = parse_cluster("h800:1x8")


def costs_of(shape: LayerShape) -> LayerCosts:
    return layer_costs(LayerCase(shape, "allgather"), CLUSTER)


def again(costs: LayerCosts) -> dict[tuple[str, ...], float]:
    return {one.outputs: one.seconds for one in costs.recomputations}


def time_of(shape: LayerShape, cluster: Cluster = CLUSTER) -> LayerTime:
    """Of the planner's clock."""
    model = hardware_of(cluster.gpu)
    case = LayerCase(shape, "allgather")
    return layer_time(case, device_of(cluster.gpu, model), network_of(cluster, model))


def test_operations_make_each_named_activation_once():
    made = [name for outputs in again(costs_of(SHAPE)) for name in outputs]
    every = "layer_input attention_input query key value attention_output attention_lse attention_residual mlp_input"
    assert list(activation_bytes(SHAPE)) == [*every.split(), "mlp_gate", "mlp_up", "mlp_activated", "mlp_hidden"]
    assert sorted(["layer_input", *made]) == sorted(activation_bytes(SHAPE))
    for option in ({"activation": "gelu"}, {"norm_placement": "post"}, {"norm_placement": "sandwich"}):
        other = changed(SHAPE, **option)
        made = [name for outputs in again(costs_of(other)) for name in outputs]
        assert sorted(["layer_input", *made]) == sorted(activation_bytes(other)), option


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("names", [["mlp_up"], ["attention_input", "query", "key"], ["attention_output"]])
def test_what_runs_again_takes_as_long_as_in_the_planners_step(names: list[str], tensor: int):
    shape = replace(SHAPE, tensor=tensor)
    costs, time = costs_of(shape), time_of(shape)
    own = sum(one.seconds for one in costs.recomputations if set(one.outputs) & set(names))
    assert own == pytest.approx(time.again(frozenset(names)).seconds)
    assert costs.forward_seconds == time.forward.seconds
    assert costs.backward_seconds == time.backward.seconds


def test_products_of_two_take_the_time_of_their_factors():
    """On two tensor ranks, into a part the first factor is whole on both and its product is computed twice; out of it
    the second. The backward computes the first product again."""
    low = changed(SHAPE, low_rank={"up": 64, "down": 32})
    assert activation_bytes(low) == activation_bytes(SHAPE), "what is between two factors is not kept"
    large = changed(SHAPE, embed=4096, head_dim=512, mlp=16384, tensor=1)
    one, whole = (time_of(shape) for shape in (changed(large, low_rank={"down": 1024}), large))
    device = device_of(CLUSTER.gpu, hardware_of(CLUSTER.gpu))
    first, second, matrix = (
        device.matmul(large.tokens, *side) for side in ((1024, 16384), (4096, 1024), (4096, 16384))
    )
    assert one.forward.matmul - whole.forward.matmul == pytest.approx(first + second - matrix)
    again = one.backward.matmul / one.forward.matmul
    assert again > whole.backward.matmul / whole.forward.matmul


def moved(qk_norm: bool, work: Callable[[LayerTime], Work]) -> float:
    """MiB that elementwise work moves in a layer of Llama 3 8B: queries are 64 MiB and keys 16 MiB."""
    there = parse_cluster("h100:1x8")
    device, network = device_of(there.gpu, hardware_of(there.gpu)), network_of(there, hardware_of(there.gpu))
    model = replace(PRESETS["llama3-8b"], qk_norm=qk_norm)
    case = layer_cases(model, 8192, Layout(attention=(("all", "mosaic"),)))["all"]
    return work(layer_time(case, device, network)).other / device.bytes_seconds(MIB)


def test_norms_of_queries_move_what_their_passes_do():
    """Passes of the compiled program. Forward 64 + 128 + 132 + 64. Backward 846, without the half of the rounding of
    attention's gradient that XLA reads, 64. Without norms, 4 passes of each."""
    ways: list[Callable[[LayerTime], Work]] = [lambda time: time.forward, lambda time: time.backward]
    forward, backward = (64 / 80 * (moved(True, way) - moved(False, way)) for way in ways)
    assert 256 + forward == pytest.approx(388, rel=0.02)
    assert 256 + backward == pytest.approx(846 - 64, rel=0.20)


def test_queries_that_are_normed_are_made_again_without_norm_and_rotation():
    """Their backward makes both again from the product, whose layout by head takes two passes."""
    query = lambda time: time.again(frozenset({"query"}))
    assert moved(True, query) == pytest.approx(2 * 64)
    assert moved(False, query) == pytest.approx(4 * 64)
