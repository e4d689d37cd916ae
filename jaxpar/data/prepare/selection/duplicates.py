"""Duplicates among documents: equal ones by a digest, similar ones by MinHash (Broder 1997).

Two documents are alike when a band of their signatures is: of 14 bands of 8 numbers, as FineWeb has (arXiv:2406.17557),
so that 92% of the pairs are found that have 80% of their sets of five successive words or signs in common, and 5% of
those with 50%.
Documents that are linked by others are alike too, and the first of them stays.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from array import array
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Shaped

from jaxpar.data.prepare.choice import EXACT

BANDS, ROWS = 14, 8
WORDS = 5
"""Successive words or signs of an element of a document's set."""
_LETTER = r"[^\W\u0e00-\u0eff\u3040-\u9fff]"
_MARK = "[{}]".format("".join(one for one in map(chr, range(0x20000)) if unicodedata.category(one)[0] == "M"))
_WORD = re.compile(rf"{_LETTER}+(?:{_MARK}+{_LETTER}*)*|\S")
"""A word with its combining marks, or a sign; in scripts without blanks between words, a letter."""
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


def duplicates(signatures: Sequence[Shaped[np.ndarray, "documents bands"]]) -> Bool[np.ndarray, " documents"]:
    """Whether each document is like an earlier one, of signatures in parts, which are joined a band at a time."""
    first = array("q", range(sum(map(len, signatures))))
    for column in range(signatures[0].shape[1]):
        band = np.concatenate([one[:, column] for one in signatures])
        order = np.argsort(band, kind="stable")
        band = band[order]
        equal = np.flatnonzero(band[1:] == band[:-1])
        for one, other in zip(order[equal].tolist(), order[equal + 1].tolist(), strict=True):
            one, other = _root(first, one), _root(first, other)
            first[max(one, other)] = min(one, other)
    return np.array(first, np.int64) < np.arange(len(first))


def _root(first: array[int], document: int) -> int:
    """The first document that is known to be linked with this one; it halves the path there (union-find)."""
    while first[document] != document:
        first[document] = document = first[first[document]]
    return document
