"""Fields of a batch: shapes, partitions, and the one sentence that a wrong array is refused with."""

from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.config.axes import BATCH_AXES
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.mesh.axes import DATA_AXES
from jaxpar.runtime.batch import FORWARD, LABELS, TOKENS, BatchLayout, Field, single_document_fields, union
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.traced import mesh_of


def test_shapes_and_partitions_follow_from_the_declaration():
    choices, pairs = Field("choices", "float32", dims=(3, 2)), Field("pairs", per="row")
    batch = BatchLayout((choices, pairs), (4, 2, 16))
    assert [batch.array_shape(field) for field in batch.fields] == [(4, 2, 16, 3, 2), (4, 2)]
    assert batch.partitions == {
        "choices": PartitionSpec(None, DATA_AXES, "context"), "pairs": PartitionSpec(None, DATA_AXES),
    }  # fmt: skip
    abstract = batch.abstract(mesh_of())
    assert {name: (leaf.shape, leaf.dtype.name) for name, leaf in abstract.items()} == {
        "choices": ((4, 2, 16, 3, 2), "float32"), "pairs": ((4, 2), "int32"),
    }  # fmt: skip


def test_the_same_field_of_two_is_one_and_two_of_a_name_are_refused():
    assert union(FORWARD, (LABELS,), (LABELS,)) == (*FORWARD, LABELS)
    with pytest.raises(AssertionError, match="labels"):
        union((LABELS,), (Field("labels", "float32"),))


def test_a_microbatch_of_documents_is_placed():
    tokens = np.arange(8).reshape(2, 4)
    placed = BatchLayout(FORWARD, tokens.shape).place(mesh_of(fsdp=2, context=2), single_document_fields(tokens))
    assert (np.asarray(placed["tokens"]) == tokens).all() and placed["tokens"].sharding.shard_shape((2, 4)) == (1, 2)
    assert (np.asarray(placed["positions"]) == np.arange(4)).all() and np.asarray(placed["examples"]).tolist() == [0, 1]


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_an_island_has_the_same_part_of_a_batch_for_any_number_of_microbatches(microbatches: int):
    tokens = np.arange(16).reshape(16, 1)
    batch = BatchLayout((TOKENS,), (microbatches, 16 // microbatches, 1), row_axes=BATCH_AXES, islands=2)
    placed = batch.place(mesh_of(islands=2, fsdp=2), {"tokens": tokens})["tokens"]
    parts = [np.asarray(shard.data).ravel() for shard in placed.addressable_shards]
    first, last = (np.sort(np.concatenate(island)) for island in (parts[:2], parts[2:]))
    assert (first.tolist(), last.tolist()) == (list(range(8)), list(range(8, 16)))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (None, ("no field labels", "int32 [8, 32]", "row and token")),
        (np.zeros((8, 31), np.int32), ("field labels", "int32 [8, 31]", "expected int32 [8, 32]")),
        (np.zeros((8, 32), np.float32), ("field labels", "float32 [8, 32]", "expected int32 [8, 32]")),
        (np.full((8, 32), 2**31 + 5), ("field labels", "2147483653", "expected int32 [8, 32]")),
    ],
    ids=["missing", "shape", "dtype", "too large"],
)
def test_a_wrong_array_is_refused_with_what_was_expected(array: Any, words: tuple[str, ...]):
    run = SmallRun(small(model={"layers": 1}))
    rows = run.rows(0)
    del rows["labels"]
    with refused(*words):
        run.place(rows if array is None else rows | {"labels": array})


def test_numbers_of_examples_wrap_and_no_other_field_is_changed():
    run = SmallRun(small(model={"layers": 1}))
    rows = run.rows(0) | {"examples": 2**31 + np.arange(8), "unread": np.zeros(3)}
    placed = run.place(rows)
    assert np.asarray(placed["examples"]).ravel().tolist() == list(range(8)) and "unread" not in placed
    assert all((np.asarray(placed[name]).reshape(rows[name].shape) == rows[name]).all() for name in ("tokens", "mask"))


def test_replayed_experts_are_a_field_of_training_alone():
    experts = ExpertsConfig(count=4, per_token=2, width=16)
    layout = SmallRun(small(model={"layers": 2, "experts": experts}, data={"routing": "a folder"})).step.layout
    (field,) = set(layout.batch.fields) - set(layout.evaluated.fields)
    assert layout.batch.array_shape(field) == (1, 8, 32, 2, 2)
