"""A vector of length 1 for each document: of its hashed n-grams, or what a model makes of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from jaxpar.data.clusters.kmeans import normalized
from jaxpar.data.clusters.ngrams import buckets, grams_of

DIM = 2048
"""Buckets of n-grams of a document."""
LONGEST = 2**16
"""Tokens of a document that are read; the rest is not."""

type Documents = Sequence[np.ndarray]
type Embed = Callable[[Documents], Float32[np.ndarray, "document dim"]]


@dataclass(frozen=True)
class NGrams:
    """Logarithms of frequencies of n-grams, each by how few documents have it."""

    rarity: Float32[np.ndarray, " dim"]

    @staticmethod
    def from_documents(sample: Documents) -> NGrams:
        """The weights of n-grams from a sample of documents."""
        frequencies = np.zeros(DIM)
        for document in sample:
            frequencies += _frequencies(document) > 0
        return NGrams(np.log((1 + len(sample)) / (1 + frequencies)).astype(np.float32) + np.float32(1e-3))

    def __call__(self, documents: Documents) -> Float32[np.ndarray, "document dim"]:
        """The vectors of documents."""
        return normalized(np.stack([np.log1p(_frequencies(one)).astype(np.float32) * self.rarity for one in documents]))


def _frequencies(document: np.ndarray) -> np.ndarray:
    """The number of times that a document has an n-gram of each bucket."""
    grams = np.concatenate(buckets(grams_of(document[:LONGEST]), DIM))
    return np.bincount(grams, minlength=DIM)
