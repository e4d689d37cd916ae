"""Where layers lie: each in one row, a rank's chunks together, and the rest of the rows marked as padding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from jaxpar.config.kinds import ALL
from jaxpar.mesh.layer_order import PADDING, LayerOrder, common_sequence
from jaxpar.mesh.parameters import ParamSpec, initial_weights
from jaxpar.pipeline.table import loop_placement, v_placement
from tests.traced import mesh_of


def test_one_rank_has_all_layers_in_order():
    order = LayerOrder.from_chunks([0], [5])
    assert order.is_ordered and not order.padded
    assert (order.stacks[ALL].rows, order.layers_per_chunk) == (5, 5)
    assert order.stacks[ALL].row_of_layer.tolist() == [0, 1, 2, 3, 4]


def test_chunks_that_go_round_lie_with_their_rank():
    order = LayerOrder.from_chunks(loop_placement(2, 2), (2, 2, 2, 2))
    assert order.stacks[ALL].numbers.tolist() == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert order.stacks[ALL].row_of_layer.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert not order.is_ordered and not order.padded


def test_short_chunks_are_padded_to_the_longest():
    order = LayerOrder.from_chunks((0, 1), (1, 3))
    assert order.stacks[ALL].numbers.tolist() == [[[0, PADDING, PADDING]], [[1, 2, 3]]]
    assert order.stacks[ALL].row_of_layer.tolist() == [0, 3, 4, 5]
    assert order.padded and not order.is_ordered
    assert (order.stacks[ALL].rows, order.layers_per_chunk) == (6, 3)


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_every_layer_has_one_row_on_the_rank_of_its_chunk(ranks: int, virtual_stages: int, data: Any):
    rank_of = loop_placement(ranks, virtual_stages)
    layers = data.draw(st.lists(st.integers(1, 4), min_size=len(rank_of), max_size=len(rank_of)))
    order = LayerOrder.from_chunks(rank_of, layers)
    rows = order.stacks[ALL].row_of_layer
    assert order.stacks[ALL].numbers.ravel()[rows].tolist() == list(range(sum(layers)))
    chunk_of = np.repeat(np.arange(len(layers)), layers)
    assert (rows // (order.stacks[ALL].rows // ranks)).tolist() == [rank_of[chunk] for chunk in chunk_of]
    assert (order.stacks[ALL].numbers == PADDING).sum() == order.stacks[ALL].rows - sum(layers)


def test_a_rank_knows_the_numbers_of_its_own_layers():
    order = LayerOrder.from_chunks(v_placement(2), (1, 2, 2, 1))
    program = jax.shard_map(
        lambda: jnp.stack([order.stacks[ALL].local(chunk) for chunk in range(2)])[None],
        mesh=mesh_of(pipe=2), in_specs=(), out_specs=PartitionSpec("pipe"),
    )  # fmt: skip
    np.testing.assert_array_equal(jax.jit(program)(), order.stacks[ALL].numbers)


@pytest.mark.parametrize(
    ("rank_of", "layers"), [((0, 1), (3, 3)), ((0, 1, 0, 1), (1, 2, 2, 1)), ((0, 1, 1, 0), (2, 1, 2, 1))]
)
def test_initial_weights_are_those_of_the_layer_wherever_it_lies(rank_of: tuple[int, ...], layers: tuple[int, ...]):
    order = LayerOrder.from_chunks(rank_of, layers)
    spec = ParamSpec((4, 3), ("embed", "mlp"))
    specs = lambda order: {"layers": {ALL: {"w": spec.stacked(order.stacks[ALL].rows)}}}
    make = lambda order: jax.jit(lambda: initial_weights(specs(order), 7, order)["layers"][ALL]["w"])()
    found, wanted = np.asarray(make(order)), np.asarray(make(LayerOrder.from_chunks([0], [6])))
    np.testing.assert_array_equal(found[order.stacks[ALL].row_of_layer], wanted)
    assert len(np.unique(wanted)) == wanted.size, "no two layers begin alike"
    assert not np.delete(found, order.stacks[ALL].row_of_layer, axis=0).any(), "padding is zero"


def test_padding_of_the_vocabulary_begins_as_zero_and_changes_no_other_value():
    make = lambda padding: initial_weights(
        {"w": ParamSpec((3, 8), ("embed", "vocab"), padding=padding)}, 7, LayerOrder.from_chunks([0], [1])
    )["w"]
    found, wanted = np.asarray(make(3)), np.asarray(make(0))
    assert wanted.all()
    np.testing.assert_array_equal(found[:, :5], wanted[:, :5])
    assert not found[:, 5:].any()


@pytest.mark.parametrize("last", [(), ("b",)], ids=["of_one_kind", "with_another_at_the_end"])
def test_long_chunks_of_which_one_has_the_others_layers_are_not_compared_pair_by_pair(last: tuple[str, ...]):
    """20,000 by 19,999 pairs would take 3 GB and minutes."""
    longer, shorter = ("a",) * 20_000 + last, ("a",) * 19_999
    assert common_sequence([shorter, longer]) == longer
    assert LayerOrder.from_kinds((0, 1), [shorter, longer]).layers_per_chunk == len(longer)


KINDS = st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=5).map(tuple), min_size=1, max_size=4)


@settings(deadline=None, max_examples=80)
@given(KINDS)
def test_every_chunk_finds_its_layers_in_order_among_the_slots(chunks: list[tuple[str, ...]]):
    order = LayerOrder.from_kinds(range(len(chunks)), chunks)
    number = 0
    for chunk, kinds in enumerate(chunks):
        numbers = [order.stacks[kind].numbers[chunk, 0, row] for kind, row in order.slots]
        own = [(slot.kind, n) for slot, n in zip(order.slots, numbers, strict=True) if n != PADDING]
        assert own == list(zip(kinds, range(number, number + len(kinds)), strict=True))
        assert order.first_slots[chunk, 0] == next(place for place, n in enumerate(numbers) if n != PADDING)
        number += len(kinds)
    for kind, stack in order.stacks.items():
        assert [slot.row for slot in order.slots if slot.kind == kind] == list(range(stack.rows_per_chunk))
        assert stack.layers.tolist() == sorted(stack.numbers[stack.numbers != PADDING].tolist())
        flat = stack.numbers.ravel()
        assert [stack.layers[place] for place in stack.places if place != PADDING] == flat[flat != PADDING].tolist()
    assert order.padded == any((stack.numbers == PADDING).any() for stack in order.stacks.values())


@pytest.mark.parametrize(
    ("chunks", "wanted"),
    [
        (["aaab", "aaba"], "aaaba"),
        (["ab", "ba"], "aba"),
        (["aabaab", "aabaab"], "aabaab"),
        (["aaa", "a"], "aaa"),
        (["aabaa", "baaba"], "baabaa"),
    ],
)
def test_the_slots_of_two_chunks_are_as_few_as_can_be(chunks: list[str], wanted: str):
    found = common_sequence(chunks)
    assert len(found) == len(wanted)


def test_the_kind_of_a_layer_does_not_change_its_initial_weights():
    spec = ParamSpec((4, 3), ("embed", "mlp"))
    plain = LayerOrder.from_chunks([0], [5])
    mixed = LayerOrder.from_kinds([0], ["abaab"])

    def made(order: LayerOrder) -> Any:
        specs = {kind: {"w": spec.stacked(stack.rows)} for kind, stack in order.stacks.items()}
        return jax.jit(lambda: initial_weights({"layers": specs}, 7, order))()["layers"]

    wanted, found = np.asarray(made(plain)[ALL]["w"]), made(mixed)
    np.testing.assert_array_equal(found["a"]["w"], wanted[[0, 2, 3]])
    np.testing.assert_array_equal(found["b"]["w"], wanted[[1, 4]])
