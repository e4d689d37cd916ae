"""Every n-gram of a text that a stream has is found, and no other one."""

import numpy as np
import pytest

from jaxpar.data.tokens import ngrams
from jaxpar.data.tokens.ngrams import NGrams, Overlap, hashed


def found_by_comparing(texts: list[list[int]], stream: list[int], size: int) -> list[Overlap]:
    known = {tuple(stream[first : first + size]) for first in range(len(stream) - size + 1)}
    overlaps = []
    for text in texts:
        hits = [first for first in range(len(text) - size + 1) if tuple(text[first : first + size]) in known]
        covered = {place for first in hits for place in range(first, first + size)}
        overlaps.append(Overlap(len(text), max(0, len(text) - size + 1), len(hits), len(covered)))
    return overlaps


@pytest.mark.parametrize("size", [1, 2, 5, 13])
def test_planted_and_chance_overlaps_are_those_of_a_plain_comparison(size: int):
    draw = np.random.default_rng(size)
    stream = draw.integers(0, 4, 700).tolist()
    texts = [draw.integers(0, 4, length).tolist() for length in (60, 0, size, size - 1, 25)]
    texts.append([5, *stream[395:425], 5])  # over the border at 400
    texts.append(stream[-size:])
    texts.append(stream[100 : 100 + size + 3] + [7] * size + stream[300 : 300 + size])
    own = NGrams(texts, size)
    own.search_stream(np.array(stream, np.uint16), block_tokens=40)  # n-grams lie in two blocks
    assert own.overlaps() == found_by_comparing(texts, stream, size)
    planted = own.overlaps()[5]
    assert (planted.covered, planted.matched) == (30, 31 - size)


def test_several_streams_add_up_and_a_short_one_has_none():
    own = NGrams([[1, 2, 3, 4, 5, 6]], 3)
    for stream in ([1, 2, 3], [9, 4, 5, 6, 9], [2, 3]):
        own.search_stream(np.array(stream, np.uint32))
    assert own.overlaps() == [Overlap(6, 4, 2, 6)]


def test_what_only_has_the_hash_of_an_n_gram_is_not_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ngrams, "hashed", lambda tokens, size, base: hashed(tokens[: len(tokens) - size + 1], 1, base))
    own = NGrams([[1, 2, 3], [4, 5, 6]], 3)
    own.search_stream(np.array([1, 2, 4, 9, 1, 3, 3, 4, 5, 6, 1], np.uint16))
    assert [one.matched for one in own.overlaps()] == [0, 1]


def test_texts_whose_n_grams_would_share_a_hash_get_another_one(monkeypatch: pytest.MonkeyPatch):
    bases: list[int] = []

    def weak(tokens: np.ndarray, size: int, base: np.uint64) -> np.ndarray:
        bases.append(int(base))
        return hashed(tokens, size, base) if len(bases) > 1 else np.zeros(len(tokens) - size + 1, np.uint64)

    monkeypatch.setattr(ngrams, "hashed", weak)
    own = NGrams([[1, 2, 3, 4]], 3)
    own.search_stream(np.array([2, 3, 4], np.uint16))
    assert [one.matched for one in own.overlaps()] == [1] and bases[0] != bases[1] == bases[2]
