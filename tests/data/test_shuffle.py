"""The second version of the order: no table of documents, every row once, and rows and documents evenly spread."""

import tracemalloc

import numpy as np
import pytest

from jaxpar.data import shuffle
from jaxpar.data.packing import PackedRows
from jaxpar.data.shuffle import BLOCK_TOKENS, CACHED_PARTS, BlockOrder
from jaxpar.data.stream import TokenStream

LENGTH = 1024


def large_stream(documents: int, tokens_each: int) -> TokenStream:
    """Many documents whose tokens take no memory."""
    starts = np.arange(documents, dtype=np.int64) * tokens_each
    return TokenStream(np.broadcast_to(np.uint16(7), (documents * tokens_each,)), starts)


def peak_bytes(stream: TokenStream, rows: int = 30) -> int:
    """Most memory that taking rows of two epochs allocates at once."""
    tracemalloc.start()
    try:
        packed = PackedRows(stream, sequence_length=LENGTH, packed=True, seed=1)
        for example in range(0, 2 * packed.rows_per_epoch, 2 * packed.rows_per_epoch // rows):
            packed.row(example)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_number_of_documents():
    few, many = (peak_bytes(large_stream(documents, 64)) for documents in (400_000, 4_000_000))
    assert many < 1.1 * few
    assert many < 8 * 2**20 < 8 * 4_000_000, "less than one number for each document"


def test_tiny_documents_cost_one_block():
    assert peak_bytes(large_stream(4_000_000, 2), rows=3) < 100 * BLOCK_TOKENS


def test_the_cache_of_blocks_is_bounded():
    order = BlockOrder(large_stream(400_000, 64), LENGTH, seed=0)
    for row in range(0, order.rows, order.rows // 100):
        order.places(0, row)
    parts = [len(block.stops) for block in order._blocks.values()]
    assert len(parts) > 1 and sum(parts) <= CACHED_PARTS


def test_rows_of_an_epoch_are_spread_evenly():
    """Any stretch of examples has rows from all over the stream, and the documents of a block stand in any place."""
    stream = large_stream(40_000, 100)
    order = BlockOrder(stream, 100, seed=3)
    for epoch in (0, 1):
        firsts = np.array([order.places(epoch, place)[0][0] for place in range(4000)])
        counts = np.histogram(firsts, bins=20, range=(0, len(stream)))[0]
        assert ((counts - 200) ** 2 / 200).sum() < 50, "chi-square of 19 degrees of freedom: 43.8 at 0.1%"
        followed = np.corrcoef(firsts[1:], firsts[:-1])[0, 1]
        assert abs(followed) < 4 / 4000**0.5


def test_documents_of_a_block_stand_in_any_place():
    stream = large_stream(20, 10)
    places = np.zeros((20, 20))
    for seed in range(2000):
        order = BlockOrder(stream, 200, seed)
        begins, numbers = order.places(0, 0)
        for place, at in enumerate(np.flatnonzero(np.diff(numbers, prepend=-1))[:20]):
            places[place, begins[at] // 10] += 1
    expected = places.sum(1, keepdims=True) / 20
    assert ((places - expected) ** 2 / expected).sum() < 480, "chi-square of 380 degrees of freedom: 470 at 0.1%"


def test_each_epoch_cuts_documents_elsewhere():
    stream = large_stream(30, 7)
    order = BlockOrder(stream, 10, seed=0)
    cuts = {tuple(sorted(int(order.places(epoch, place)[0][0]) for place in range(21))) for epoch in range(6)}
    assert len(cuts) == 6


@pytest.mark.parametrize("length", [1000, 1001, 2500])
def test_a_row_as_long_as_a_block_is_a_block(length, monkeypatch):
    monkeypatch.setattr(shuffle, "BLOCK_TOKENS", 1000)
    monkeypatch.setattr(shuffle, "BLOCK_ROWS", 1)
    order = BlockOrder(large_stream(5, 1000), length, seed=0)
    assert order.rows == 5000 // length
    seen = np.concatenate([order.places(0, place)[0][:length] for place in range(order.rows)])
    assert len(np.unique(seen)) == len(seen) == order.rows * length
