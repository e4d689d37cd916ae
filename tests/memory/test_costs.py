"""Costs of making activations again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxpar.config.errors import UserError
from jaxpar.config.plan import AxisSizes
from jaxpar.config.presets import PRESETS as MODELS
from jaxpar.config.schema import Config, DataConfig
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.memory.costs import Operation, Speeds, layer_costs, operations, speeds_on
from jaxpar.memory.layer_shape import activation_bytes, layer_shape
from tests.memory.shapes import changed, shape_of

SHAPE = shape_of(rows=2, sequence=1024, embed=512, heads=8, kv_heads=2, head_dim=64, mlp=1536, context=2, tensor=2)
ROUND = Speeds(flops=1e6, memory=1e4, tensor=100.0, context=10.0, host=1.0)


def test_operations_make_each_named_activation_once():
    made = [name for one in operations(SHAPE) for name in one.outputs]
    every = "layer_input attention_input query key value attention_output attention_lse attention_residual mlp_input"
    assert list(activation_bytes(SHAPE)) == [*every.split(), "mlp_gate", "mlp_up", "mlp_activated", "mlp_hidden"]
    assert sorted(["layer_input", *made]) == sorted(activation_bytes(SHAPE))
    for option in ({"activation": "gelu"}, {"norm_placement": "post"}, {"norm_placement": "sandwich"}):
        other = changed(SHAPE, **option)
        made = [name for one in operations(other) for name in one.outputs]
        assert sorted(["layer_input", *made]) == sorted(activation_bytes(other)), option


@pytest.mark.parametrize("model", ["llama3-8b", "gpt3-175b"])
def test_matmuls_of_a_layer_are_two_flops_for_each_weight_and_token(model: str):
    config = Config(model=MODELS[model], data=DataConfig(sequence_length=4096))
    shape = layer_shape(config, AxisSizes(), rows=1)
    sizes = MODELS[model]
    weights = 4 * sizes.embed**2 + 2 * sizes.embed * sizes.mlp
    if sizes.activation == "swiglu":
        weights += sizes.embed * sizes.mlp - 2 * sizes.embed**2 * (1 - (sizes.kv_heads or 0) / sizes.heads)
    causal = 2 * 2 * shape.embed * 4096 * (4096 + 1) / 2
    assert sum(o.flops for o in operations(shape)) == pytest.approx(2 * weights * 4096 + causal)


def test_tensor_ranks_share_the_work_of_everything():
    alone = {o.name: o for o in operations(replace(SHAPE, tensor=1))}
    for one in operations(SHAPE):
        assert one.flops == alone[one.name].flops / 2
        sends = one.name in ("attention_gather", "mlp_gather", "attention_residual", "mlp_down")
        assert (one.sent > 0) == sends
    assert not any(o.sent for o in alone.values())


def test_seconds_are_the_longer_of_work_and_traffic_and_then_messages():
    assert ROUND.seconds(Operation("a", (), flops=3e6, moved=1e4)) == 3
    assert ROUND.seconds(Operation("a", (), flops=3e6, moved=5e4)) == 5
    assert ROUND.seconds(Operation("a", (), flops=3e6, moved=1e4, sent=100, sent_context=20)) == 3 + 1 + 2


def test_attention_again_asks_the_context_ranks_for_their_keys_and_values_again():
    attention = next(o for o in operations(SHAPE) if o.name == "attention")
    sizes = activation_bytes(SHAPE)
    assert attention.sent_context == sizes["key"] + sizes["value"]
    assert attention.outputs == ("attention_output", "attention_lse")


def test_speeds_follow_the_links_that_axes_lie_on():
    cluster = parse_cluster("h800:4x8")
    node, network = cluster.bandwidth(False), cluster.bandwidth(True)
    inside = speeds_on(cluster, AxisSizes(tensor=8, context=4))
    assert (inside.tensor, inside.context) == (node, network)
    assert speeds_on(cluster, AxisSizes(tensor=2, context=4)).context == node
    assert speeds_on(cluster, AxisSizes(tensor=16)).tensor == network
    assert speeds_on(cluster, AxisSizes(), "float32").flops == cluster.gpu.peaks["tensorfloat32"]
    assert speeds_on(parse_cluster("v100-32:1x8"), AxisSizes(), "float32").flops == 125e12


def test_measured_times_take_the_place_of_the_roofline():
    speeds = replace(ROUND, tensor=1e12, context=1e12)
    modelled = layer_costs(SHAPE, speeds)
    measured = layer_costs(SHAPE, speeds, {"query": 2.5, "mlp_down": 1.0})
    again = {o.outputs: o.seconds for o in measured.recomputations}
    assert again[("query",)] == 2.5
    assert again[("key",)] == next(o.seconds for o in modelled.recomputations if o.outputs == ("key",))
    own = {o.name: ROUND.work(o) for o in operations(SHAPE)}
    least = modelled.forward_seconds - own["mlp_down"] - own["query"]
    assert measured.forward_seconds == pytest.approx(least + 3.5)


@pytest.mark.parametrize(
    ("measured", "said"), [({"querry": 1.0}, "did you mean query"), ({"query": -1.0}, "expected seconds, 0 or more")]
)
def test_times_that_are_of_nothing_are_refused(measured: dict[str, float], said: str):
    with pytest.raises(UserError, match=said):
        layer_costs(SHAPE, ROUND, measured)


def test_a_layer_is_as_long_as_its_work_or_its_messages():
    work = sum(ROUND.work(o) for o in operations(SHAPE))
    quick, slow = replace(ROUND, tensor=1e12, context=1e12), replace(ROUND, tensor=1e12, context=1e-3)
    assert layer_costs(SHAPE, quick).forward_seconds == pytest.approx(work)
    sent = sum(o.sent_context for o in operations(SHAPE))
    assert layer_costs(SHAPE, slow).forward_seconds == pytest.approx(sent / 1e-3)


def test_copies_are_waited_for_when_a_layer_is_too_short_to_hide_them():
    costs = replace(layer_costs(SHAPE, ROUND), forward_seconds=3.0, backward_seconds=6.0, host_bandwidth=10.0)
    assert [costs.exposed_seconds(n) for n in (0, 30, 40, 60, 70)] == [0, 0, 1, 3, 5]
