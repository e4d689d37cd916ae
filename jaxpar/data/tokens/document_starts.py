"""Start positions of the documents of a token folder, read from their files on use and not cached in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64
from numpy.typing import ArrayLike

from jaxpar.config.errors import UserError
from jaxpar.data.tokens.digests import DIGEST_BYTES
from jaxpar.data.tokens.file_array import FileArray

SPACING = 1024
"""Interval of the starts in memory: a start is looked up by reading one interval from the file."""
_READ = 2**15


class ShardStarts:
    """Start positions of the documents of one shard.

    The file is compared with its digest when it is used for the first time.

    Args:
        values: the starts in their file, after its header.
        header: the header that the file must have.
        digest: of the whole file.
        tokens: tokens of the shard.
    """

    def __init__(self, values: FileArray, *, header: bytes, digest: str, tokens: int) -> None:
        self.tokens = tokens
        self._values, self._header, self._digest = values, header, digest
        self._some: Int64[np.ndarray, " stretches"] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def between(self, first: int, last: int) -> Int64[np.ndarray, " n"]:
        """The starts of the documents from `first` up to, not including, `last`."""
        if self._some is None:
            self.check()
        return self._values.between(first, last)

    def until(self, position: int) -> int:
        """The number of documents that start at or before a position of the shard."""
        some = self.check() if self._some is None else self._some
        first = (int(some.searchsorted(position, side="right")) - 1) * SPACING
        stretch = self._values.between(first, min(first + SPACING, len(self)))
        return first + int(stretch.searchsorted(position, side="right"))

    def check(self) -> Int64[np.ndarray, " stretches"]:
        """Compare the whole file with its digest; returns the start of each stretch. Threads may do so twice.

        Raises:
            UserError: the file is damaged, or does not say where documents start.
        """
        path, count = self._values.path, len(self)
        header = self._values.raw(0, len(self._header))
        hasher = hashlib.blake2b(header, digest_size=DIGEST_BYTES)
        some, before, ordered = [], -1, True
        for first in range(0, count, _READ):
            part = self._values.between(first, min(first + _READ, count))
            hasher.update(part)
            ordered = ordered and bool((np.diff(part, prepend=before) > 0).all()) and (first > 0 or part[0] == 0)
            before = int(part[-1])
            some.append(part[::SPACING].copy())
        if hasher.hexdigest() != self._digest:
            raise UserError(f"{path} is damaged (its digest is not that of index.json); make the folder again")
        if header != self._header:
            raise UserError(f"{path} is not a .npy file of {count} numbers of int64")
        if not ordered or before >= self.tokens:
            raise UserError(f"{path} does not say where documents start: they are not in order, or one is empty")
        self._some = np.concatenate(some)
        return self._some


class DocumentStarts:
    """Start positions of the documents of several concatenated shards; indexed by slices, like an array."""

    def __init__(self, shards: Sequence[ShardStarts]) -> None:
        assert shards, "at least one shard"
        self._shards = list(shards)
        self._documents = np.cumsum([0, *map(len, shards)], dtype=np.int64)
        self._tokens = np.cumsum([0, *(shard.tokens for shard in shards)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._documents[-1])

    def __getitem__(self, index: slice) -> Int64[np.ndarray, " n"]:
        """Raises `UserError` when a file is damaged, or cannot be read."""
        first, last, step = index.indices(len(self))
        assert step == 1, "slices are without a step"
        parts = [np.empty(0, np.int64)]
        for shard_index in range(self._shard_of(self._documents, first), len(self._shards)):
            begin, shard = int(self._documents[shard_index]), self._shards[shard_index]
            if begin >= last or first >= last:
                break
            within = shard.between(max(first - begin, 0), min(last - begin, len(shard)))
            parts.append(within + self._tokens[shard_index])
        return np.concatenate(parts)

    def searchsorted(self, places: ArrayLike, side: str = "left") -> Int64[np.ndarray, "..."]:
        """The number of documents that start before each position, or (`right`) at or before it, like NumPy's."""
        places = np.asarray(places)
        last = places if side == "right" else places - 1
        starts = [self._until(int(position)) for position in last.ravel()]
        return np.array(starts, np.int64).reshape(places.shape)

    def _until(self, position: int) -> int:
        if position < 0:
            return 0
        shard = min(self._shard_of(self._tokens, position), len(self._shards) - 1)
        return int(self._documents[shard]) + self._shards[shard].until(position - int(self._tokens[shard]))

    @staticmethod
    def _shard_of(firsts: Int64[np.ndarray, " shards"], position: int) -> int:
        return int(firsts.searchsorted(position, side="right")) - 1

    def check(self) -> None:
        """Compare every file with its digest. Raises `UserError`."""
        for shard in self._shards:
            shard.check()

    def concatenate(self, other: DocumentStarts) -> DocumentStarts:
        """These documents and then the other ones."""
        return DocumentStarts([*self._shards, *other._shards])
