"""The exchange in the program for H100s: its bytes, and what runs beside it."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.cost.experts import Experts
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.experts.messages import PLACE_BYTES, room_of, row_room
from jaxpar.memory.layer_shape import LayerShape
from tests.gpu_compile import in_child

SIZES = {
    "tokens": 16384, "embed": 1024, "width": 14336, "count": 8, "per_token": 2, "expert": 8, "shared": 7168,
}  # fmt: skip
"""Two hosts of four GPUs; the products of half a slice take longer than a message."""
CAPACITY, SLICES = 1.25, 4


@cache
def account(exchange: str, slices: int, own_first: bool = False) -> dict[str, Any]:
    layout = {
        "exchange": exchange, "capacity": CAPACITY, "slices": slices, "own_first": own_first, "node_devices": 4,
    }  # fmt: skip
    return in_child("tests.layers.experts.gpu_exchange:account", layout, SIZES, 2)


def wanted_bytes(slices: int) -> tuple[float, float]:
    """Of the rows, there and back, forward and backward; and of what is announced, forward and backward."""
    ranks, tokens = SIZES["expert"], SIZES["tokens"] // slices
    experts = ExpertsConfig(count=SIZES["count"], per_token=SIZES["per_token"])
    room = room_of(tokens * SIZES["per_token"], ranks, CAPACITY)
    rows = row_room(tokens, room, experts, ranks, CAPACITY)
    return 4 * slices * ranks * rows * SIZES["embed"] * 2, 2 * slices * ranks * room * PLACE_BYTES


@pytest.mark.long
@pytest.mark.parametrize(("slices", "own_first"), [(1, False), (SLICES, False), (SLICES, True)])
def test_the_program_sends_the_bytes_of_the_formula_and_scatters_nothing(slices: int, own_first: bool):
    found = account("all_to_all", slices, own_first)
    assert found["bytes"] == sum(wanted_bytes(slices)) * 7 / 8
    assert found["scatters"] == []


@pytest.mark.long
def test_further_rounds_that_do_not_run_fill_no_buffers_for_gradients():
    """Theirs are added to those of the first round in place; a matrix of all experts of a rank has 14 Mi numbers."""
    experts = SIZES["count"] // SIZES["expert"]
    assert account("all_to_all", SLICES)["filled"][0] < 2 * experts * SIZES["embed"] * SIZES["width"]


@pytest.mark.long
def test_a_hierarchical_exchange_sends_inside_nodes_and_between_them():
    assert account("hierarchical", SLICES)["bytes"] == sum(wanted_bytes(SLICES)) * (3 / 4 + 1 / 2)


@pytest.mark.long
def test_slices_hide_the_exchange_forward_and_backward():
    whole, sliced = account("all_to_all", 1), account("all_to_all", SLICES)
    assert whole["exposed"] > 0.4 * whole["exchange"], "whole, half of it is waited for"
    waited = [(exposed, seconds) for exposed, seconds, _ in sliced["messages"] if exposed > 0.05 * seconds]
    # What is announced, and the first slice on its way out, are sent before any product.
    assert len(waited) <= 2, sliced["messages"]
    assert sliced["exposed"] < 0.2 * whole["exposed"]


@pytest.mark.long
def test_own_rows_go_beside_the_first_slice():
    """Of 1/8 of the rows the products take longer than a message: what is announced is all that is left."""
    exchanged, first = account("all_to_all", SLICES), account("all_to_all", SLICES, own_first=True)
    assert first["exposed"] < 0.4 * exchanged["exposed"], first["messages"]
    assert first["compute"] < 1.01 * exchanged["compute"]


@pytest.mark.long
def test_what_the_planner_expects_of_slices_is_what_the_program_waits_for():
    """Within a seventh, without what a message costs the products beside it, which is in no account of a program."""
    experts = ExpertsConfig(count=SIZES["count"], per_token=SIZES["per_token"], shared=1)
    model = ModelConfig(layers=1, embed=SIZES["embed"], heads=8, mlp=SIZES["width"], vocab=256, experts=experts)
    shape = LayerShape(model, 1, SIZES["tokens"], expert=SIZES["expert"], capacity=CAPACITY)
    cluster = parse_cluster("h100:2x4")
    hardware = replace(hardware_of(cluster.gpu), overlap_slowdown=0.0)
    on = device_of(cluster.gpu, hardware), network_of(cluster, hardware)
    expected = sum(Experts(shape, *on).waited(SLICES, first=False))
    assert expected == pytest.approx(account("all_to_all", SLICES)["exposed"], rel=1 / 7)
    assert sum(Experts(shape, *on).waited(SLICES, first=True)) == 0, "own rows take longer than the first slice"
    assert sum(Experts(shape, *on).waited(1, first=False)) > 3 * expected
