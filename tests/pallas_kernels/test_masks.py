"""The mask algebra, held to a judgement of each pair by itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.masks import Mask, allowed, visible_pairs, visited_blocks
from tests.pallas_kernels.dense64 import Tokens, pairs

MASKS = [
    Mask(causal, window, segmented, prefix)
    for causal in (True, False)
    for window in (None, 1, 3)
    for segmented in (True, False)
    for prefix in (True, False)
]


@st.composite
def packed_rows(draw: st.DrawFn, *, rows: int = 2, length: int | None = None) -> np.ndarray:
    """Segments of rows of documents in order, each row with or without padding at its end."""
    length = draw(st.integers(1, 14)) if length is None else length
    documents = st.lists(st.integers(1, length), min_size=1, max_size=length)
    lengths = draw(st.lists(documents, min_size=rows, max_size=rows))
    segments = np.zeros((rows, length), np.int32)
    for row, of_row in enumerate(lengths):
        ids = np.repeat(np.arange(1, len(of_row) + 1), of_row)[:length]
        segments[row, : len(ids)] = ids
    return segments


def random_tokens(seed: int, queries: int = 9, keys: int = 11) -> Tokens:
    """Indices in any order and segments that come back, as no data set has them."""
    rng = np.random.default_rng(seed)
    return Tokens(
        np.stack([rng.permutation(keys)[:queries] for _ in range(2)]),
        np.stack([rng.permutation(keys) for _ in range(2)]),
        rng.integers(0, 3, (2, queries)),
        rng.integers(0, 3, (2, keys)),
        rng.integers(0, keys, 2),
    )


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_allowed_keeps_exactly_the_pairs_that_the_definition_keeps(mask: Mask) -> None:
    tokens = random_tokens(0)
    assert np.array_equal(allowed(mask, **tokens.named()), pairs(mask, tokens))


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_block_that_is_skipped_holds_no_kept_pair(mask: Mask) -> None:
    for seed in range(3):
        tokens = random_tokens(seed, queries=8, keys=12)
        cut = lambda x, size: np.moveaxis(x.reshape(2, -1, size), 1, 0)
        blocks = visited_blocks(
            mask,
            cut(tokens.q_indices, 2),
            cut(tokens.kv_indices, 3),
            cut(tokens.q_segments, 2),
            cut(tokens.kv_segments, 3),
            tokens.prefix_lengths,
        )
        needed = pairs(mask, tokens).reshape(2, 4, 2, 4, 3).any((0, 2, 4))
        assert not (needed & ~np.asarray(blocks)).any()


def test_blocks_of_a_packed_row_are_computed_only_where_a_document_sees_its_own_past() -> None:
    indices = np.arange(8).reshape(4, 1, 2)
    segments = np.array([1, 1, 1, 1, 2, 2, 0, 0]).reshape(4, 1, 2)
    blocks = visited_blocks(Mask(segmented=True), indices, indices, segments, segments)
    assert np.array_equal(blocks, np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], bool))


@pytest.mark.parametrize("mask", [mask for mask in MASKS if mask.segmented], ids=str)
@settings(max_examples=12, deadline=None)
@given(segments=packed_rows(), prefix=st.lists(st.integers(0, 15), min_size=2, max_size=2))
def test_the_count_of_kept_pairs_of_packed_rows_is_exact(mask: Mask, segments: np.ndarray, prefix: list[int]) -> None:
    tokens = Tokens.whole_rows(segments, np.array(prefix))
    assert visible_pairs(mask, segments, np.array(prefix)) == pairs(mask, tokens).sum()


@pytest.mark.parametrize("mask", [mask for mask in MASKS if not mask.segmented], ids=str)
@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_the_count_of_kept_pairs_of_a_length_is_exact(mask: Mask, length: int) -> None:
    prefix = np.array([2])
    tokens = Tokens.whole_rows(np.ones((1, length), np.int32), prefix)
    assert visible_pairs(mask, length, prefix) == pairs(mask, tokens).sum()


def test_without_segments_in_the_mask_padding_counts_like_any_token() -> None:
    segments = np.array([[1, 1, 2, 0], [0, 0, 0, 0]], np.int32)
    assert visible_pairs(Mask(), segments) == 2 * 10
    assert visible_pairs(Mask(segmented=True), segments) == 3 + 1


def test_the_count_does_not_overflow() -> None:
    segments = np.ones((1, 2**17), np.int32)
    assert visible_pairs(Mask(), 2**17) == visible_pairs(Mask(segmented=True), segments) == 2**33 + 2**16


def test_a_segment_that_comes_back_cannot_be_counted() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        visible_pairs(Mask(segmented=True), np.array([[1, 2, 1]], np.int32))
    assert visible_pairs(Mask(segmented=True), np.array([[1, 2, 2], [1, 1, 2]], np.int32)) == 8


@pytest.mark.parametrize(
    ("mask", "missing"), [(Mask(segmented=True), "q_segments"), (Mask(prefix=True), "prefix_lengths")]
)
def test_tokens_that_a_mask_needs_cannot_be_left_out(mask: Mask, missing: str) -> None:
    indices = np.arange(4)[None]
    with pytest.raises(ValueError, match=missing):
        allowed(mask, indices, indices)
    with pytest.raises(ValueError, match=missing):
        visited_blocks(mask, indices[None], indices[None])


def test_a_window_that_would_see_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Mask(window=0)
