"""A batch is a function of the step and of the rows asked for, and of nothing else."""

import itertools

import chex
import numpy as np
import pytest

from jaxpar.data.loader import batch_index, batch_rows, batches
from jaxpar.data.packing import PackedRows
from jaxpar.data.stream import TokenStream
from jaxpar.data.synthetic import SyntheticRows
from tests.processes import run_python

FIELDS = {"tokens", "labels", "mask", "segments", "positions", "indices", "examples"}


def of_size(batch_size, rows):
    """Batches of one size, of which a host wants some rows."""
    return lambda index: (batch_size * index, rows)


def packed_rows() -> PackedRows:
    """19 rows an epoch, so that a few batches of 8 cross the border of epochs."""
    ends = np.cumsum(np.tile([3, 11, 1, 25], 4))
    tokens = np.arange(ends[-1], dtype=np.uint32)
    return PackedRows(TokenStream(tokens, np.append(0, ends[:-1])), sequence_length=8, packed=True, seed=5)


def synthetic_rows() -> SyntheticRows:
    return SyntheticRows(vocab=50, sequence_length=8, packed=True, seed=5, split=0)


@pytest.fixture(params=[packed_rows, synthetic_rows])
def dataset(request):
    return request.param()


def assert_same(left, right):
    assert left.keys() == right.keys() == FIELDS
    chex.assert_trees_all_equal(left, right, strict=True)


def test_hosts_assemble_the_batch_that_one_host_makes(dataset):
    for step in range(6):
        whole = batch_rows(dataset, step, 8, range(8))
        for hosts in (2, 4, 8):
            parts = [batch_rows(dataset, step, 8, range(host, 8, hosts)) for host in range(hosts)]
            merged = {name: np.empty_like(values) for name, values in whole.items()}
            for host, part in enumerate(parts):
                for name, values in part.items():
                    merged[name][host::hosts] = values
            assert_same(merged, whole)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_the_iterator_gives_the_batch_of_every_step(dataset, prefetch):
    stream = batches(dataset, batch=of_size(8, [1, 4, 5]), prefetch=prefetch)
    for step, batch in enumerate(itertools.islice(stream, 7)):
        assert_same(batch, batch_rows(dataset, step, 8, [1, 4, 5]))


def test_starting_at_a_step_is_skipping_the_steps_before_it(dataset):
    from_start = itertools.islice(batches(dataset, batch=of_size(8, range(8)), prefetch=2), 4, 8)
    resumed = batches(dataset, batch=of_size(8, range(8)), first_step=4, prefetch=2)
    for left, right in zip(from_start, resumed, strict=False):
        assert_same(left, right)


def test_examples_are_numbered_over_all_rows_of_all_steps(dataset):
    batch = batch_rows(dataset, 3, 8, [0, 7, 2])
    assert batch["examples"].tolist() == [24, 31, 26] and batch["tokens"].shape == (3, 8)
    late = batch_rows(dataset, 2**29, 8, [0, 7, 2])["examples"]
    assert late.tolist() == [2**32, 2**32 + 7, 2**32 + 2]


def test_an_error_while_a_batch_is_made_reaches_the_caller():
    class Broken(SyntheticRows):
        def row(self, example):
            if example >= 8:
                raise OSError("the disk is gone")
            return super().row(example)

    stream = batches(Broken(vocab=9, sequence_length=4, packed=True, seed=0, split=0), batch=of_size(4, range(4)))
    with pytest.raises(OSError, match="the disk is gone"):
        list(itertools.islice(stream, 3))


def test_everything_but_the_iterator_works_without_grain_and_jax():
    program = (
        "import sys; sys.modules.update(grain=None, jax=None)\n"
        "from jaxpar.config.schema import DataConfig\n"
        "from jaxpar.data import batch_rows, open_data\n"
        "data = open_data(DataConfig(source='synthetic', sequence_length=8), vocab=20, seed=0)\n"
        "print(batch_rows(data.train, 0, 2, [0, 1])['tokens'].shape)"
    )
    done = run_python("-c", program)
    assert done.stdout == "(2, 8)\n", done.stderr


def test_batches_that_are_left_out_are_skipped_and_change_nothing_before_them(dataset):
    def numbers(**options):
        stream = batches(dataset, batch=of_size(8, [0]), prefetch=0, **options)
        return [int(batch["examples"][0]) // 8 for batch in itertools.islice(stream, 6)]

    assert numbers(left_out=(2, 3, 5)) == [0, 1, 4, 6, 7, 8]
    assert numbers(left_out=(5, 2, 3), first_step=2) == [4, 6, 7, 8, 9, 10]
    assert [batch_index(step, (2, 3)) for step in range(4)] == [0, 1, 4, 5]
