"""Sharded tokens are the array that laying the shards end to end gives, and a damaged block is never given out."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.data.tokens.digests import BLOCK_BYTES, SUM_BYTES, SummingFile, block_sum, parse_sums
from jaxpar.data.tokens.file_array import FileArray
from jaxpar.data.tokens.sharded_tokens import CheckedTokens, ShardedTokens
from tests.sentences import refused

OFFSET = 128


def shard(tmp_path, tokens, *, vocab=2**16, flipped=None):
    """The shard of some tokens; the bit `flipped` of its file is wrong."""
    file = io.BytesIO()
    summing = SummingFile(file)
    summing.write(b"h" * OFFSET)
    summing.write(np.asarray(tokens, "<u2").tobytes())
    raw = bytearray(file.getvalue())
    if flipped is not None:
        raw[flipped // 8] ^= 1 << flipped % 8
    path = tmp_path / "a.npy"
    path.unlink(missing_ok=True)  # Another shard may have it open.
    path.write_bytes(raw)
    in_file = FileArray(path, offset=OFFSET, count=len(tokens), dtype=np.dtype("<u2"))
    return CheckedTokens(in_file, sums=parse_sums(summing.sums()), limit=vocab)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_slices_and_places_are_those_of_one_array(tmp_path_factory, data, lengths):
    whole = np.arange(sum(lengths), dtype=np.uint16)
    parts = np.split(whole, np.cumsum(lengths)[:-1])
    tokens = ShardedTokens([shard(tmp_path_factory.getbasetemp(), part) for part in parts], np.dtype("u2"))
    assert len(tokens) == len(whole)
    first, last = (data.draw(st.none() | st.integers(-12, 60)) for _ in range(2))
    np.testing.assert_array_equal(tokens[first:last], whole[first:last])
    places = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1))), np.int64)
    np.testing.assert_array_equal(tokens[places], whole[places])
    assert tokens[places].dtype == np.uint16


def test_a_damaged_block_is_not_given_out_and_the_others_are(tmp_path):
    whole = np.arange(3 * BLOCK_BYTES // 2, dtype=np.uint32) % 50000
    flipped = 8 * (BLOCK_BYTES + 1000) + 3
    tokens = ShardedTokens([shard(tmp_path, whole, flipped=flipped)], np.dtype("u2"))
    inside = (BLOCK_BYTES + 1000 - OFFSET) // 2
    np.testing.assert_array_equal(tokens[np.array([5, 40])], whole[[5, 40]])
    np.testing.assert_array_equal(tokens[:100], whole[:100])
    for used in (lambda: tokens[np.array([inside])], lambda: tokens[inside : inside + 1], tokens.check):
        with refused("a.npy", "is damaged", "bytes 262144 to 524288"):
            used()
    np.testing.assert_array_equal(tokens[2 * BLOCK_BYTES // 2 :], whole[2 * BLOCK_BYTES // 2 :])


def test_a_token_beyond_the_vocabulary_is_not_given_out(tmp_path):
    tokens = ShardedTokens([shard(tmp_path, [1, 7, 9], vocab=9)], np.dtype("u2"))
    with refused("a.npy holds 9", "below 9"):
        tokens[0:1]


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_the_sums_of_a_file_do_not_depend_on_how_it_is_written(size):
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    wanted = b"".join(block_sum(content[at : at + BLOCK_BYTES]) for at in range(0, size, BLOCK_BYTES))
    for step in (size or 1, 100_003, BLOCK_BYTES):
        file = SummingFile(io.BytesIO())
        for at in range(0, size, step):
            file.write(content[at : at + step])
        assert file.sums() == wanted
    assert len(wanted) == SUM_BYTES * -(-size // BLOCK_BYTES)
