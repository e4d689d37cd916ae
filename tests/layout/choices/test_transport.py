"""Whether the nodes of a mesh allow what a configuration asks of messages, and what a plan decides of them."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import Plan
from jaxpar.layout.choices.transport import transport_of
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.memory.estimate import estimated_bytes
from jaxpar.mesh.quantized.transport import Transport, hpz_ranks
from tests.sentences import refused
from tests.small_run import layout_of, small


def plan_of(node_devices: int | None, quantized: dict[str, Any] | None = None, **parallel: Any) -> Plan:
    config = small(parallel=parallel | {"quantized": quantized or {}}, data={"batch_size": 24})
    return make_plan(resolve_config(config, layout_of(config.parallel)), jax.devices()[0], node_devices)


INT4 = {"gradients": "int4"}


@pytest.mark.parametrize(
    ("node_devices", "quantized", "parallel", "transport"),
    [
        (4, {}, {"fsdp": 8}, Transport()),
        (4, INT4, {"fsdp": 8}, Transport(gradient="int4", node_devices=4)),
        (None, INT4, {"fsdp": 8}, Transport(gradient="int4")),
        (8, INT4, {"fsdp": 8}, Transport(gradient="int4")),
        (4, {"weights": "int8"}, {"fsdp": 8, "hpz": 4}, Transport(weight="int8", hpz=4)),
    ],
)
def test_a_plan_cuts_messages_at_the_border_of_nodes(node_devices, quantized, parallel, transport):
    assert transport_of(plan_of(node_devices, quantized, **parallel)) == transport


@pytest.mark.parametrize(
    ("node_devices", "quantized", "parallel", "parts"),
    [
        (8, INT4, {"fsdp": 6, "tensor": 2}, ("parallel.quantized.gradients: int4", "fsdp 6", "tensor 2", "nodes of 8")),
        (
            4,
            {},
            {"fsdp": 8, "hpz": 2, "tensor": 4},
            ("hpz: 2", "tensor 4", "node of 4 devices"),
        ),
        (4, {}, {"fsdp": 12, "hpz": 3}, ("hpz: 3", "node of 4 devices", "for example 4")),
    ],
)
def test_what_nodes_do_not_divide_is_refused(node_devices, quantized, parallel, parts):
    with refused(*parts):
        plan_of(node_devices, quantized, **parallel)


@pytest.mark.parametrize(
    ("key", "value", "near"),
    [("weights", "int16", "int8"), ("weights", "float8_e4m3", "float8_e4m3fn"), ("gradients", "bf16", "bfloat16")],
)
def test_an_unknown_dtype_of_a_message_is_refused_with_the_nearest(key: str, value: str, near: str):
    with refused(f"parallel.quantized.{key}", repr(value), f"did you mean {near}?"):
        plan_of(4, {key: value}, fsdp=8)


ROUTED = {"experts": ExpertsConfig(count=8, per_token=2)}


@pytest.mark.parametrize(
    ("own", "sizes", "ranks"),
    [
        (8, (4, 4, 2), 2), (4, (2, 4, 2), 2), (2, (2, 4, 4), 2), (16, (4, 4, 2), 4), (4, (2, 4, 1), 1),
        (12, (2, 4, 3), 3),
    ],
)  # fmt: skip
def test_an_hpz_shard_of_an_expert_is_among_the_neighbours_that_share_it(own, sizes, ranks):
    places = [np.unravel_index(rank, sizes) for rank in range(own)]
    assert sum(place[1] == 0 for place in places) == ranks
    axes: dict[str, int] = dict(zip(("fsdp", "expert", "context"), sizes, strict=True))
    assert hpz_ranks(own, axes, ("expert",)) == ranks and hpz_ranks(own, axes, ("tensor",)) == own


def test_neighbours_of_an_axis_of_one_rank_are_those_of_the_others():
    """Also where they are no whole ranks of an axis: nothing is split over the experts' axis."""
    assert hpz_ranks(8, {"fsdp": 8, "expert": 1, "context": 3}, ("expert",)) == 8
    parallel = {"fsdp": 2, "context": 3, "hpz": 2}
    config = resolve_config(small(parallel=parallel, data={"batch_size": 24, "sequence_length": 48}), 6)
    plan = make_plan(config, jax.devices()[0], None)
    assert transport_of(plan).hpz == 2 and estimated_bytes(config, plan) > 0


def test_neighbours_that_are_a_part_of_several_axes_are_refused():
    parallel = {"fsdp": 2, "expert": 4, "context": 3, "hpz": 2}
    config = small(model=ROUTED, parallel=parallel, data={"batch_size": 24, "sequence_length": 48})
    with refused("parallel.hpz: 2", "fsdp 2", "expert 4", "context 3", "3 or 6 or 12"):
        make_plan(resolve_config(config, 24), jax.devices()[0], None)


def test_nodes_also_divide_the_ranks_that_share_an_expert():
    """Those of fsdp and context: three of them are not spread evenly over nodes of four devices."""
    parallel = {"fsdp": 3, "expert": 4, "quantized": INT4, "replica": 2}
    config = small(model=ROUTED, parallel=parallel, data={"batch_size": 24})
    assert make_plan(resolve_config(config, 24), jax.devices()[0], 4).node_devices == 4
    with refused("parallel.quantized.gradients: int4", "fsdp 3", "nodes of 8 devices"):
        make_plan(resolve_config(config, 24), jax.devices()[0], 8)
