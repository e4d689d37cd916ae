"""Where layers lie: each in one row, a rank's chunks together, and the rest of the rows marked as padding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from jaxpar.config.kinds import ALIKE
from jaxpar.mesh.layer_order import PADDING, LayerOrder
from jaxpar.mesh.parameters import ParamSpec, initial_weights
from jaxpar.pipeline.table import loop_placement, v_placement
from tests.traced import mesh_of


def test_one_rank_has_all_layers_in_order():
    order = LayerOrder.of_one_rank(5)
    assert order.in_order and not order.padded
    assert (order.stacks[ALIKE].rows, order.layers_per_chunk) == (5, 5)
    assert order.stacks[ALIKE].row_of_layer.tolist() == [0, 1, 2, 3, 4]


def test_stages_of_one_length_have_the_layers_in_order():
    assert LayerOrder.of_chunks((0, 1, 2), (2, 2, 2)).in_order


def test_chunks_that_go_round_lie_with_their_rank():
    order = LayerOrder.of_chunks(loop_placement(2, 2), (2, 2, 2, 2))
    assert order.stacks[ALIKE].numbers.tolist() == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert order.stacks[ALIKE].row_of_layer.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert not order.in_order and not order.padded


def test_chunks_in_a_v_give_rank_0_both_ends():
    assert LayerOrder.of_chunks(v_placement(2), (1, 1, 1, 1)).stacks[ALIKE].numbers.tolist() == [[[0], [3]], [[1], [2]]]


def test_short_chunks_are_padded_to_the_longest():
    order = LayerOrder.of_chunks((0, 1), (1, 3))
    assert order.stacks[ALIKE].numbers.tolist() == [[[0, PADDING, PADDING]], [[1, 2, 3]]]
    assert order.stacks[ALIKE].row_of_layer.tolist() == [0, 3, 4, 5]
    assert order.padded and not order.in_order
    assert (order.stacks[ALIKE].rows, order.layers_per_chunk) == (6, 3)


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_every_layer_has_one_row_on_the_rank_of_its_chunk(ranks: int, virtual_stages: int, data: Any):
    rank_of = loop_placement(ranks, virtual_stages)
    layers = data.draw(st.lists(st.integers(1, 4), min_size=len(rank_of), max_size=len(rank_of)))
    order = LayerOrder.of_chunks(rank_of, layers)
    rows = order.stacks[ALIKE].row_of_layer
    assert order.stacks[ALIKE].numbers.ravel()[rows].tolist() == list(range(sum(layers)))
    chunk_of = np.repeat(np.arange(len(layers)), layers)
    assert (rows // (order.stacks[ALIKE].rows // ranks)).tolist() == [rank_of[chunk] for chunk in chunk_of]
    assert (order.stacks[ALIKE].numbers == PADDING).sum() == order.stacks[ALIKE].rows - sum(layers)


def test_a_rank_knows_the_numbers_of_its_own_layers():
    order = LayerOrder.of_chunks(v_placement(2), (1, 2, 2, 1))
    program = jax.shard_map(
        lambda: jnp.stack([order.stacks[ALIKE].own(chunk) for chunk in range(2)])[None],
        mesh=mesh_of(pipe=2), in_specs=(), out_specs=PartitionSpec("pipe"),
    )  # fmt: skip
    np.testing.assert_array_equal(jax.jit(program)(), order.stacks[ALIKE].numbers)


@pytest.mark.parametrize(
    ("rank_of", "layers"), [((0, 1), (3, 3)), ((0, 1, 0, 1), (1, 2, 2, 1)), ((0, 1, 1, 0), (2, 1, 2, 1))]
)
def test_initial_weights_are_those_of_the_layer_wherever_it_lies(rank_of: tuple[int, ...], layers: tuple[int, ...]):
    order = LayerOrder.of_chunks(rank_of, layers)
    spec = ParamSpec((4, 3), ("embed", "mlp"))
    make = lambda order: jax.jit(
        lambda: initial_weights({"w": spec.stacked(order.stacks[ALIKE].rows)}, 7, order)["w"]
    )()
    found, wanted = np.asarray(make(order)), np.asarray(make(LayerOrder.of_one_rank(6)))
    np.testing.assert_array_equal(found[order.stacks[ALIKE].row_of_layer], wanted)
    assert len(np.unique(wanted)) == wanted.size, "no two layers begin alike"
    assert not np.delete(found, order.stacks[ALIKE].row_of_layer, axis=0).any(), "padding is zero"
