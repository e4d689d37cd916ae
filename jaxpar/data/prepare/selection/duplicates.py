"""Duplicates among documents: equal ones by a digest, similar ones by MinHash (Broder 1997).

Two documents are alike when a band of their signatures is: of 14 bands of 8 numbers, as FineWeb has (arXiv:2406.17557),
so that 92% of the pairs are found whose sets of five successive words have 80% in common, and 5% of those with 50%.
Documents that are linked by others are alike too, and the first of them stays.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np
from jaxtyping import Bool, Shaped

from jaxpar.data.prepare.choice import EXACT

BANDS, ROWS = 14, 8
WORDS = 5
"""Successive words of an element of a document's set."""
_WORD = re.compile(r"[^\W\u0e00-\u0eff\u3040-\u9fff]+|\w")
"""A word; in scripts without blanks between words, a letter."""
_SEED = 1


def signature(text: str, method: str | None) -> Shaped[np.ndarray, " bands"]:
    """The bands of a text: 16 bytes for `EXACT`, 14 numbers of 64 bits for `MINHASH`."""
    if method is None:
        return np.zeros(0, np.uint64)
    if method == EXACT:
        return np.array([hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()], "S16")
    from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]

    words = _WORD.findall(text.lower()) or [text]
    minhash = RMinHash(num_perm=BANDS * ROWS, seed=_SEED)
    minhash.update([" ".join(words[first : first + WORDS]) for first in range(max(1, len(words) - WORDS + 1))])
    values = np.array(minhash.digest(), "<u4").reshape(BANDS, ROWS)
    return np.frombuffer(b"".join(hashlib.blake2b(band, digest_size=8).digest() for band in values), "<u8")


def duplicates(signatures: Shaped[np.ndarray, "documents bands"]) -> Bool[np.ndarray, " documents"]:
    """Whether each document is like an earlier one."""
    first = np.arange(len(signatures))
    linked = [np.unique(band, return_index=True, return_inverse=True) for band in signatures.T]
    earliest = [firsts[rows] for _, firsts, rows in linked]
    while True:  # Until each document knows the first that it is linked with.
        before = first.copy()
        for firsts in earliest:
            np.minimum.at(first, firsts, first.copy())
            first = np.minimum(first, first[firsts])
        if (first == before).all():
            return first < np.arange(len(first))
