"""Tokens in several files, as one array; every block is checked before it is used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt, UInt8

from jaxpar.config.errors import UserError
from jaxpar.data.tokens.digests import BLOCK_BYTES, block_sum
from jaxpar.data.tokens.file_array import FileArray


class CheckedTokens:
    """The tokens of one `.npy` file. A block of the file is compared with its sum when it is used for the first time.

    Args:
        tokens: the tokens of the file; they begin at a multiple of the size of a token.
        sums: the sum of each block of the file.
        limit: tokens must be below it: the vocabulary, or 2 for a mask.
    """

    def __init__(self, tokens: FileArray, *, sums: UInt8[np.ndarray, "blocks sum_bytes"], limit: int) -> None:
        size = tokens.dtype.itemsize
        assert tokens.offset % size == 0 == BLOCK_BYTES % size, "no token is in two blocks"
        self._tokens, self._sums, self._limit = tokens, sums, limit
        self._bytes = tokens.offset + len(tokens) * size
        self._checked: Bool[np.ndarray, " blocks"] = np.zeros(len(sums), bool)

    def __len__(self) -> int:
        return len(self._tokens)

    def read_at(self, places: Int[np.ndarray, " n"]) -> UInt[np.ndarray, " n"]:
        """The tokens at some places. Raises `UserError` when they lie in a damaged block."""
        blocks = (self._tokens.offset + places * self._tokens.dtype.itemsize) // BLOCK_BYTES
        if not self._checked[blocks].all():
            self._check(np.unique(blocks))
        return self._tokens.read_at(places)

    def between(self, first: int, last: int) -> UInt[np.ndarray, " n"]:
        """The tokens from `first` up to, not including, `last`. Raises `UserError` when a block is damaged."""
        if first < last:
            offset, size = self._tokens.offset, self._tokens.dtype.itemsize
            self._check(
                np.arange((offset + first * size) // BLOCK_BYTES, (offset + last * size - 1) // BLOCK_BYTES + 1)
            )
        return self._tokens.between(first, last)

    def check(self) -> None:
        """Check every block that was not checked yet. Raises `UserError` when one is damaged."""
        self._check(np.arange(len(self._sums)))

    def _check(self, blocks: Int64[np.ndarray, " n"]) -> None:
        """Threads may check a block twice, which costs time only."""
        for block in blocks[~self._checked[blocks]]:
            first = int(block) * BLOCK_BYTES
            content = self._tokens.raw(first, min(BLOCK_BYTES, self._bytes - first))
            path = self._tokens.path
            if block_sum(content) != self._sums[block].tobytes():
                raise UserError(
                    f"{path} is damaged (bytes {first} to {first + len(content)} are not what was written); "
                    "copy or make the folder again"
                )
            tokens = np.frombuffer(content, self._tokens.dtype)[
                max(0, self._tokens.offset - first) // self._tokens.dtype.itemsize :
            ]
            if len(tokens) and int(tokens.max()) >= self._limit:
                raise UserError(f"{path} holds {int(tokens.max())}; expected values below {self._limit}")
            self._checked[block] = True


class ShardedTokens:
    """The tokens of several files laid end to end; indexed like an array of one dimension, by slices and integers."""

    ndim = 1

    def __init__(self, shards: Sequence[CheckedTokens], dtype: np.dtype) -> None:
        assert shards, "at least one shard"
        self._shards = list(shards)
        self._stops: Int64[np.ndarray, " shards"] = np.cumsum([len(shard) for shard in shards], dtype=np.int64)
        self.dtype = dtype

    def __len__(self) -> int:
        return int(self._stops[-1])

    def __getitem__(self, index: slice | Int[np.ndarray, " n"]) -> UInt[np.ndarray, " n"]:
        """Raises `UserError` when the requested tokens are damaged."""
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            assert step == 1, "slices are without a step"
            return self._between(first, max(first, last))
        return self._read_at(index)

    def _between(self, first: int, last: int) -> UInt[np.ndarray, " n"]:
        low, high = np.searchsorted(self._stops, [first, max(first, last - 1)], side="right")
        parts = []
        for shard_index in range(low, min(high + 1, len(self._shards))):
            begin = int(self._stops[shard_index]) - len(self._shards[shard_index])
            shard = self._shards[shard_index]
            parts.append(shard.between(max(first - begin, 0), min(last - begin, len(shard))))
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])

    def _read_at(self, places: Int[np.ndarray, " n"]) -> UInt[np.ndarray, " n"]:
        if len(places):
            low, high = np.searchsorted(self._stops, [places.min(), places.max()], side="right")
            if low == high:  # As is usual: the tokens of a row are near each other.
                return self._shards[low].read_at(places - (self._stops[low] - len(self._shards[low])))
        numbers = np.searchsorted(self._stops, places, side="right")
        values = np.empty(len(places), self.dtype)
        for shard in np.unique(numbers):
            chosen = numbers == shard
            begin = int(self._stops[shard]) - len(self._shards[shard])
            values[chosen] = self._shards[shard].read_at(places[chosen] - begin)
        return values

    def check(self) -> None:
        """Check every block of every file. Raises `UserError` when one is damaged."""
        for shard in self._shards:
            shard.check()

    def concatenate(self, other: ShardedTokens) -> ShardedTokens:
        """These tokens and then the other ones."""
        assert self.dtype == other.dtype, "one type"
        return ShardedTokens([*self._shards, *other._shards], self.dtype)
