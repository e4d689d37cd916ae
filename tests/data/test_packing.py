"""Rows are what laying the documents end to end and cutting gives, and the same row whenever it is asked for."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.data import shuffle
from jaxpar.data.packing import PackedRows
from jaxpar.data.randomness import KeyedPermutation, permutation, random_bits
from jaxpar.data.stream import TokenStream
from tests.sentences import refused


def stream_of(*lengths: int) -> TokenStream:
    """Documents of these lengths; each token is its own number, so that a token states where it is from."""
    ends = np.cumsum(lengths)
    return TokenStream(np.arange(100, 100 + ends[-1], dtype=np.uint16), np.append(0, ends[:-1]))


def laid_by_tables(stream: TokenStream, length: int, seed: int, epoch: int) -> list[list[tuple[int, int]]]:
    """Rows of an epoch in version 1 and the token after each, as (token, document)."""
    bounds = [*stream.starts[:].tolist(), len(stream)]
    laid = []
    for document in permutation(len(stream.starts), seed, epoch, 0):
        laid += [(int(stream.tokens[i]), document) for i in range(bounds[document], bounds[document + 1])]
    return [laid[row * length : (row + 1) * length + 1] for row in permutation(len(stream) // length, seed, epoch, 1)]


def laid_by_blocks(stream: TokenStream, length: int, seed: int, epoch: int) -> list[list[tuple[int, int]]]:
    """The same of version 2, from lists of tokens."""
    rows, block_rows = len(stream) // length, max(shuffle.BLOCK_ROWS, shuffle.BLOCK_TOKENS // length)
    offset = int(random_bits(1, seed, epoch, 3)[0]) % len(stream)
    of_token = np.repeat(np.arange(len(stream.starts)), stream.lengths)
    circle = [(int(stream.tokens[i]), (int(of_token[i]), i < offset)) for i in range(len(stream))]
    circle = circle[offset:] + circle[:offset]
    cut = []
    for number, first in enumerate(range(0, rows, block_rows)):
        block = circle[first * length : min(first + block_rows, rows) * length]
        parts = [list(part) for _, part in groupby(block, lambda each: each[1])]
        laid = []
        for part in permutation(len(parts), seed, epoch, 2, number):
            laid += [(token, part) for token, _ in parts[part]]
        cut += [laid[at : at + length + 1] for at in range(0, len(laid), length)]
    order = KeyedPermutation(rows, seed, epoch, 1)
    return [cut[order.permute(place)] for place in range(rows)]


def reference_row(
    stream: TokenStream, length: int, packed: bool, seed: int, example: int, version: int
) -> dict[str, list[int]]:
    """A row the slow way: the epoch's rows as lists, then one token at a time."""
    epoch, place = divmod(example, len(stream) // length)
    laid = {1: laid_by_tables, 2: laid_by_blocks, 3: laid_by_blocks}[version](stream, length, seed, epoch)[place]
    row: dict[str, list[int]] = {name: [] for name in ("tokens", "labels", "mask", "segments", "positions", "indices")}
    segment, position = 1, 0
    for index in range(length):
        token, document = laid[index]
        if packed and index > 0 and document != laid[index - 1][1]:
            segment, position = segment + 1, 0
        following = laid[index + 1] if index + 1 < len(laid) else None
        scored = following is not None and (following[1] == document or not packed)
        row["tokens"].append(token)
        row["labels"].append(following[0] if following is not None and scored else 0)
        row["mask"].append(int(scored))
        row["segments"].append(segment)
        row["positions"].append(position)
        row["indices"].append(index)
        position += 1
    return row


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    length=st.integers(1, 12),
    packed=st.booleans(),
    seed=st.integers(0, 2**40),
    example=st.integers(0, 60),
    version=st.sampled_from(sorted(shuffle.ORDERS)),
    block_tokens=st.integers(1, 30),
    block_rows=st.integers(1, 3),
)
def test_a_row_is_what_the_slow_reference_states(
    lengths, length, packed, seed, example, version, block_tokens, block_rows
):
    stream = stream_of(*lengths)
    length = min(length, len(stream))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "BLOCK_TOKENS", block_tokens)
        patch.setattr(shuffle, "BLOCK_ROWS", block_rows)
        row = PackedRows(stream, sequence_length=length, packed=packed, seed=seed, shuffle=version).row(example)
        expected = reference_row(stream, length, packed, seed, example, version)
    assert {name: values.tolist() for name, values in row.items()} == expected
    assert {values.dtype for name, values in row.items() if name != "mask"} == {np.dtype(np.int32)}
    assert row["mask"].dtype == np.float32


def test_seeds_and_epochs_differ_in_the_order_of_documents_and_of_rows():
    stream = stream_of(*[3] * 40)

    def epoch(seed: int, number: int) -> list[int]:
        rows = PackedRows(stream, sequence_length=6, packed=True, seed=seed)
        return np.concatenate([rows.row(number * 20 + place)["tokens"] for place in range(20)]).tolist()

    orders = [epoch(0, 0), epoch(0, 1), epoch(1, 0), epoch(1, 1)]
    assert all(orders[i] != orders[j] for i in range(4) for j in range(i))
    single = PackedRows(stream_of(60), sequence_length=3, packed=True, seed=0)
    firsts = [int(single.row(place)["tokens"][0]) for place in range(20)]
    assert firsts != sorted(firsts), "one long document is not read in its own order"


def test_examples_may_be_asked_for_in_any_order():
    rows = PackedRows(stream_of(5, 9, 4, 3), sequence_length=4, packed=True, seed=1)
    forward = [rows.row(example) for example in range(25)]
    for example in (24, 3, 11, 0, 19, 6):
        for name, values in rows.row(example).items():
            np.testing.assert_array_equal(values, forward[example][name])


def test_data_that_is_shorter_than_a_row_is_a_users_error():
    with refused("data.sequence_length=9", "8 tokens"):
        PackedRows(stream_of(3, 5), sequence_length=9, packed=True, seed=0)


FIRST_TOKENS = {
    1: [126, 109, 138, 142, 160, 115, 134, 113, 166, 142, 136, 158, 119, 132],
    2: [153, 160, 149, 101, 121, 134, 139, 111, 142, 149, 122, 135, 160, 166],
}
FIRST_TOKENS[3] = FIRST_TOKENS[2]
"""First token of each row of two epochs, by version of the order."""


@pytest.mark.parametrize("version", sorted(shuffle.ORDERS))
def test_the_order_of_a_version_never_changes(version, monkeypatch):
    monkeypatch.setattr(shuffle, "BLOCK_TOKENS", 30)
    monkeypatch.setattr(shuffle, "BLOCK_ROWS", 1)
    rows = PackedRows(stream_of(*[7] * 10), sequence_length=10, packed=True, seed=2**33 + 5, shuffle=version)
    assert [int(rows.row(example)["tokens"][0]) for example in range(14)] == FIRST_TOKENS[version]


@pytest.mark.parametrize("version", sorted(shuffle.ORDERS))
def test_the_orders_of_past_epochs_are_dropped(version):
    rows = PackedRows(stream_of(5, 9, 4, 3), sequence_length=4, packed=True, seed=1, shuffle=version)
    for example in range(50):
        rows.row(example)
    order = rows._order
    assert len(order._tables if isinstance(order, shuffle.TableOrder) else order._epochs) == 2
