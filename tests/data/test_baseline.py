"""The bigram baseline is the textbook's, scored on what the batches score."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.data.baseline import ALPHAS, bigram_loss
from jaxpar.data.stream import TokenStream
from tests.sentences import refused


def stream(tokens) -> TokenStream:
    return TokenStream(np.array(tokens, np.uint16), np.zeros(1, np.int64))


def batch(tokens, labels, mask) -> dict[str, np.ndarray]:
    return {"tokens": np.int32(tokens), "labels": np.int32(labels), "mask": np.float32(mask)}


def reference(train: list[int], pairs: list[tuple[int, int]], vocab: int) -> float:
    """The definition, one pair at a time."""
    seen = Counter(itertools.pairwise(train))
    firsts = Counter(train[:-1])

    def log_p(a: int, b: int, alpha: float, left_out: int) -> float:
        return math.log((seen[a, b] - left_out + alpha) / (firsts[a] - left_out + alpha * vocab))

    def left_out_likelihood(alpha: float) -> float:
        return sum(log_p(a, b, alpha, 1) for a, b in itertools.pairwise(train))

    alpha = max(ALPHAS, key=left_out_likelihood)
    return -sum(log_p(a, b, alpha, 0) for a, b in pairs) / len(pairs)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), vocab=st.integers(2, 7))
def test_the_loss_is_that_of_the_definition(data, vocab):
    tokens = st.integers(0, vocab - 1)
    train = data.draw(st.lists(tokens, min_size=2, max_size=40))
    pairs = data.draw(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=20))
    firsts, seconds = zip(*pairs, strict=True)
    scored = [batch([[a]], [[b]], [[1]]) for a, b in zip(firsts, seconds, strict=True)]
    assert bigram_loss(stream(train), scored, vocab) == pytest.approx(reference(train, pairs, vocab), rel=1e-12)


def test_only_what_is_scored_counts():
    train = stream([0, 1, 2, 0, 1, 2, 0, 0])
    scored = batch([[0, 1, 2], [1, 0, 0]], [[1, 0, 0], [2, 0, 0]], [[1, 0, 1], [1, 1, 0]])
    pairs = [(0, 1), (2, 0), (1, 2), (0, 0)]
    assert bigram_loss(train, [scored], 3) == pytest.approx(reference(train.tokens.tolist(), pairs, 3), rel=1e-12)


def test_a_large_vocabulary_needs_no_square_table():
    train = TokenStream(np.arange(1000, dtype=np.uint32) * 100, np.zeros(1, np.int64))
    assert 0 < bigram_loss(train, [batch([100, 7], [200, 9], [1, 1])], 10**6) < math.log(10**6)


def test_batches_that_score_nothing_are_an_error():
    with refused("evaluation.batches", "data.sequence_length"):
        bigram_loss(stream([0, 1]), [batch([0], [0], [0])], 2)
