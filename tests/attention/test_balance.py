"""Orders of a sequence: each is a permutation, and the work that it gives each rank is counted exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.attention.balance import (
    ORDERS,
    blocks_per_rank,
    imbalance,
    run_length,
    sequence_order,
    visible_pairs_per_rank,
)
from pallas_kernels.masks import Mask, allowed, visible_pairs
from tests.pallas_kernels.dense64 import Tokens, pairs
from tests.pallas_kernels.test_masks import packed_rows
from tests.sentences import refused

MASKS = [
    Mask(causal, window, segmented) for causal in (True, False) for window in (None, 5) for segmented in (True, False)
]
RANKS = [2, 4, 8]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("order", ORDERS)
def test_an_order_places_each_slot_once(order: str, ranks: int) -> None:
    assert sorted(sequence_order(order, 48, ranks)) == list(range(48))


def test_the_orders_are_those_of_their_papers() -> None:
    parts = {order: sequence_order(order, 12, 3).reshape(3, 4).tolist() for order in ORDERS}
    assert parts["contiguous"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert parts["zigzag"] == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]
    assert parts["striped"] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


@pytest.mark.parametrize(
    ("order", "length", "pieces"), [("contiguous", 18, 4), ("striped", 18, 4), ("zigzag", 20, 8), ("zigzag", 0, 8)]
)
def test_a_length_that_does_not_divide_is_refused(order: str, length: int, pieces: int) -> None:
    with refused(f"{order} order on 4 ranks", f"{pieces} equal pieces", f"{length} tokens", error=ValueError):
        sequence_order(order, length, 4)


def test_an_unknown_order_is_refused() -> None:
    with refused("'zebra'", "contiguous, zigzag, striped", error=ValueError):
        sequence_order("zebra", 16, 2)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_work_is_what_the_mask_keeps_pair_by_pair_and_block_by_block(order: str, mask: Mask) -> None:
    segments = np.array([[1] * 7 + [2] * 1 + [3] * 11 + [0] * 5, [4] * 24], np.int32)
    indices, ranks, block = sequence_order(order, 24, 4), 4, 4
    tokens = Tokens.whole_rows(segments)
    kept = pairs(mask, tokens)[:, indices][:, :, indices]
    by_rank = kept.reshape(2, ranks, -1).sum((0, 2))
    assert np.array_equal(visible_pairs_per_rank(mask, segments, indices, ranks), by_rank)
    blocks = blocks_per_rank(mask, segments, indices, ranks, block, block)  # parts of 6 are evened out to blocks of 3
    needed = kept.reshape(2, 8, 3, 8, 3).any((0, 2, 4)).reshape(ranks, -1).sum(1)
    assert (needed <= blocks).all() and (blocks <= 16).all()
    if not mask.segmented and order != "striped":
        assert np.array_equal(needed, blocks), "the bounds of a block say all where its indices are neighbours"


def test_parts_that_leave_a_shorter_block_count_it_as_one() -> None:
    assert blocks_per_rank(Mask(causal=False), None, np.arange(20), 2, 4, 3).tolist() == [3 * 8, 3 * 8]
    assert blocks_per_rank(Mask(window=1), None, np.arange(20), 2, 4, 4).tolist() == [3, 3]


@pytest.mark.parametrize("ranks", RANKS)
def test_causal_work_of_zigzag_and_striped_ranks_differs_by_at_most_a_block(ranks: int) -> None:
    length, block = 64 * ranks, 8
    contiguous, zigzag, striped = (sequence_order(order, length, ranks) for order in ORDERS)
    assert imbalance(visible_pairs_per_rank(Mask(), None, contiguous, ranks)) > 0.45
    assert np.ptp(visible_pairs_per_rank(Mask(), None, zigzag, ranks)) == 0
    assert 0 < np.ptp(visible_pairs_per_rank(Mask(), None, striped, ranks)) <= length
    for indices in (zigzag, striped):
        assert np.ptp(blocks_per_rank(Mask(), None, indices, ranks, block, block)) <= 1


@pytest.mark.parametrize("ranks", RANKS)
def test_contiguous_ranks_of_a_short_window_have_equal_work_but_for_the_first(ranks: int) -> None:
    work = visible_pairs_per_rank(Mask(window=16), None, sequence_order("contiguous", 64 * ranks, ranks), ranks)
    assert (work[1:] == 16 * 64).all() and work[0] == 16 * 64 - 16 * 15 // 2


@settings(max_examples=40, deadline=None)
@given(segments=packed_rows(length=16), order=st.sampled_from(ORDERS), mask=st.sampled_from(MASKS))
def test_the_work_of_all_ranks_is_the_work_of_the_rows(segments: np.ndarray, order: str, mask: Mask) -> None:
    work = visible_pairs_per_rank(mask, segments, sequence_order(order, 16, 4), 4)
    kept = allowed(mask, **Tokens.whole_rows(segments).named())
    assert work.sum() == visible_pairs(mask, segments) == int(kept.sum())


@pytest.mark.parametrize(("run", "block", "computed"), [(None, 512, "2.0"), (256, 256, "1.06")])
def test_blocks_inside_the_chunks_of_a_zigzag_rank_compute_little_that_is_masked(run, block, computed) -> None:
    assert run_length("zigzag", 4096, 8) == 256 and run_length("striped", 4096, 8) is None
    order = Mask(), None, sequence_order("zigzag", 4096, 8), 8
    ratio = blocks_per_rank(*order, 512, 512, run).sum() * block**2 / visible_pairs(Mask(), 4096)
    assert ratio == pytest.approx(float(computed), rel=5e-3)


def test_a_row_of_padding_is_no_work_for_anybody() -> None:
    work = visible_pairs_per_rank(Mask(segmented=True), np.zeros((1, 8), np.int32), np.arange(8), 2)
    assert not work.any() and imbalance(work) == 0.0


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(ValueError, match="prefix"):
        visible_pairs_per_rank(Mask(prefix=True), None, np.arange(8), 2)
    with pytest.raises(ValueError, match="contiguous"):
        visible_pairs_per_rank(Mask(segmented=True), np.array([[1, 2, 1, 1]]), np.arange(4), 2)
    with refused("8 tokens", "3 ranks", error=ValueError):
        visible_pairs_per_rank(Mask(), None, np.arange(8), 3)
    with pytest.raises(ValueError, match=r"\(1, 4\)"):
        blocks_per_rank(Mask(), np.ones((1, 4)), np.arange(8), 2, 2, 2)
