"""Whether the nodes of a mesh allow what a configuration asks of messages, and what a plan decides of them."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from jaxpar.config.plan import Plan
from jaxpar.layout.choices.wire import wire_of
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.mesh.wire.wire import Wire
from tests.sentences import refused
from tests.small_run import layout_of, small


def plan_of(node_devices: int | None, precision: dict[str, Any] | None = None, **parallel: Any) -> Plan:
    config = small(parallel=parallel, precision=precision or {}, data={"batch_size": 24})
    return make_plan(resolve_config(config, layout_of(config.parallel)), jax.devices()[0], node_devices)


INT4 = {"gradient_wire": "int4"}


@pytest.mark.parametrize(
    ("node_devices", "precision", "parallel", "wire"),
    [
        (4, {}, {"fsdp": 8}, Wire()),
        (4, INT4, {"fsdp": 8}, Wire(gradient="int4", node_devices=4)),
        (None, INT4, {"fsdp": 8}, Wire(gradient="int4")),
        (8, INT4, {"fsdp": 8}, Wire(gradient="int4")),
        (4, {"weight_wire": "int8"}, {"fsdp": 8, "secondary_shard": 4}, Wire(weight="int8", secondary=4)),
        (4, {}, {"fsdp": 8, "collectives": "hierarchical"}, Wire(hierarchical=True, node_devices=4)),
    ],
)
def test_a_plan_cuts_messages_at_the_border_of_nodes(
    node_devices: int | None, precision: dict[str, Any], parallel: dict[str, Any], wire: Wire
):
    assert wire_of(plan_of(node_devices, precision, **parallel)) == wire


@pytest.mark.parametrize(
    ("node_devices", "precision", "parallel", "parts"),
    [
        (
            8,
            {},
            {"fsdp": 8, "collectives": "hierarchical"},
            ("parallel.collectives: hierarchical", "8 devices", "one node", "expected flat"),
        ),
        (
            8,
            {},
            {"fsdp": 12, "collectives": "hierarchical"},
            ("parallel.collectives: hierarchical", "fsdp 12", "nodes of 8 devices"),
        ),
        (8, INT4, {"fsdp": 6, "tensor": 2}, ("precision.gradient_wire: int4", "fsdp 6", "tensor 2", "nodes of 8")),
        (
            4,
            {},
            {"fsdp": 8, "secondary_shard": 2, "tensor": 4},
            ("parallel.secondary_shard: 2", "parallel.tensor 4", "node of 4 devices", "expected null"),
        ),
        (
            4,
            {},
            {"fsdp": 12, "secondary_shard": 3},
            ("parallel.secondary_shard: 3", "node of 4 devices", "for example 4"),
        ),
    ],
)
def test_what_nodes_do_not_divide_is_refused(
    node_devices: int, precision: dict[str, Any], parallel: dict[str, Any], parts: tuple[str, ...]
):
    with refused(*parts):
        plan_of(node_devices, precision, **parallel)


@pytest.mark.parametrize(
    ("key", "value", "near"),
    [
        ("weight_wire", "int16", "int8"),
        ("weight_wire", "float8_e4m3", "float8_e4m3fn"),
        ("gradient_wire", "bf16", "bfloat16"),
    ],
)
def test_an_unknown_dtype_of_the_wire_is_refused_with_the_nearest(key: str, value: str, near: str):
    with refused(f"precision.{key}", repr(value), f"did you mean {near}?"):
        plan_of(4, {key: value}, fsdp=8)
