"""N-grams of texts, looked for in a stream of tokens: exactly, in one pass, with little memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int64, UInt32, UInt64

from jaxpar.data.stream import Tokens

BLOCK_TOKENS = 2**16
"""Tokens of a stream that are hashed at a time, so that they stay in a processor's cache."""
FILTER_BITS = 24
"""Maximum bits of a hash that index the filter before the search."""
MIX = np.uint64(0x9E3779B97F4A7C15)
"""Odd, the golden ratio of 2^64: spreads tokens over all bits."""
ATTEMPTS = 8


@dataclass(frozen=True)
class Overlap:
    """Overlap of a text with a stream."""

    tokens: int
    ngrams: int
    """Number of n-grams of the text; 0 if it is too short."""
    matched: int
    """Number of them that are in the stream."""
    covered: int
    """Tokens of the text in at least one that was found."""


class NGrams:
    """The n-grams of some texts. Their hashes are an index; what has the hash of one is compared token by token.

    Holds about 50 bytes for each n-gram of the texts, a filter of at most 16 MiB, and while it looks 4 MiB, however
    long the stream is.

    Args:
        texts: tokens of each text.
        size: tokens of an n-gram.
    """

    def __init__(self, texts: Sequence[Sequence[int]], size: int) -> None:
        self.size = size
        self._lengths = [len(text) for text in texts]
        self._tokens: UInt32[np.ndarray, " tokens"] = np.concatenate(
            [np.zeros(0, np.uint32), *(np.asarray(text, np.uint32) for text in texts)]
        )
        stops = np.cumsum([0, *self._lengths])
        places = [np.arange(first, last - size + 1) for first, last in pairwise(stops)]
        self._places: Int64[np.ndarray, " ngrams"] = np.concatenate([np.zeros(0, np.int64), *places])
        self._index()

    def _index(self) -> None:
        """Hashes by which no two different n-grams of the texts are alike."""
        for attempt in range(ATTEMPTS):
            self._base = np.uint64(int(MIX) + 2 * attempt + 2)
            hashes = hashed(self._tokens, self.size, self._base)[self._places]
            self._hashes, firsts, self._same = np.unique(hashes, return_index=True, return_inverse=True)
            self._firsts = self._places[firsts]
            if self._alike(self._places, self._tokens, self._firsts[self._same]).all():
                break
        else:
            raise AssertionError("different n-grams had the same 64 bits under each of several hashes")
        self._matched: Bool[np.ndarray, " hashes"] = np.zeros(len(self._hashes), bool)
        bits = min(FILTER_BITS, max(8, 4 + len(self._hashes).bit_length()))
        self._shift = np.uint64(64 - bits)
        self._filter: Bool[np.ndarray, " prefixes"] = np.zeros(2**bits, bool)
        self._filter[self._hashes >> self._shift] = True

    def search_stream(self, stream: Tokens, block_tokens: int = BLOCK_TOKENS) -> None:
        """Look for the n-grams in a stream, a block at a time; may be called for several."""
        if not len(self._hashes):
            return
        for first in range(0, len(stream) - self.size + 1, block_tokens):
            # The last n-gram of a block ends in the next one.
            self._look_in_block(np.asarray(stream[first : first + block_tokens + self.size - 1]))

    def _look_in_block(self, tokens: np.ndarray) -> None:
        rows, places = self._hashed_alike(tokens)
        fresh = ~self._matched[rows]
        rows, places = rows[fresh], places[fresh]
        self._matched[rows[self._alike(places, tokens, self._firsts[rows])]] = True

    def contains_any(self, tokens: np.ndarray) -> bool:
        """Whether some tokens have one of the n-grams."""
        if not len(self._hashes):
            return False
        rows, places = self._hashed_alike(tokens)
        return bool(self._alike(places, tokens, self._firsts[rows]).any())

    def _hashed_alike(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The n-grams of the texts whose hash is at a place in `tokens`, and these places."""
        hashes = hashed(tokens, self.size, self._base)
        places = np.flatnonzero(self._filter[hashes >> self._shift])
        rows = np.minimum(np.searchsorted(self._hashes, hashes[places]), len(self._hashes) - 1)
        alike = self._hashes[rows] == hashes[places]
        return rows[alike], places[alike]

    def _alike(self, places: np.ndarray, tokens: np.ndarray, firsts: np.ndarray) -> Bool[np.ndarray, " ngrams"]:
        """Whether the n-gram of `tokens` at each of `places` is that of the texts at each of `firsts`."""
        same = np.ones(len(places), bool)
        for step in range(self.size):
            same &= tokens[places + step] == self._tokens[firsts + step]
        return same

    def overlaps(self) -> list[Overlap]:
        """Overlap of each text with the streams so far."""
        matched = self._matched[self._same] if len(self._places) else np.zeros(0, bool)
        bounds = np.zeros(len(self._tokens) + 1, np.int64)
        np.add.at(bounds, self._places[matched], 1)
        np.add.at(bounds, self._places[matched] + self.size, -1)
        covered = np.cumsum(bounds[:-1]) > 0
        overlaps, first, gram = [], 0, 0
        for length in self._lengths:
            grams = max(0, length - self.size + 1)
            matches = int(matched[gram : gram + grams].sum())
            overlaps.append(Overlap(length, grams, matches, int(covered[first : first + length].sum())))
            first, gram = first + length, gram + grams
        return overlaps


def hashed(tokens: np.ndarray, size: int, base: np.uint64) -> UInt64[np.ndarray, " ngrams"]:
    """The hash of each n-gram, a polynomial in `base` modulo 2^64, of `len(tokens) - size + 1` of them.

    N-grams of twice the size come from two of one size, so it takes as many passes as `size` has bits.
    """
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * MIX
    mixed ^= mixed >> np.uint64(32)
    count = max(0, len(tokens) - size + 1)
    result, width = np.zeros(len(mixed), np.uint64), 0
    part, part_width = mixed, 1
    for bit in range(size.bit_length()):
        if size >> bit & 1:
            result = _joined(part, part_width, result, width, base)
            width += part_width
        if size >> (bit + 1):
            part = _joined(part, part_width, part, part_width, base)
            part_width *= 2
    return result[:count]


def _joined(first: np.ndarray, width: int, second: np.ndarray, second_width: int, base: np.uint64) -> np.ndarray:
    """Hashes of n-grams of the `width` of the first and, after them, the width of the second."""
    if not second_width:
        return first
    count = max(0, min(len(first), len(second) - width))
    return first[:count] * np.uint64(pow(int(base), second_width, 2**64)) + second[width : width + count]
