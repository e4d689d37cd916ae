"""The order of an epoch: the tokens of a row, by the row's index in the epoch.

A checkpoint names the version of the order that its run began with, and a run keeps it. The versions:

- **1** lays whole documents end to end in a random order and cuts this into rows, in another random order. It holds
  tables of all documents and rows of an epoch.
- **2** holds no such table. The stream, seen as a circle and begun at a random token, is cut into blocks of about
  `BLOCK_TOKENS` tokens. The documents of a block, those at its ends being cut, are laid end to end in a random order
  and cut into rows. The rows of all blocks come in a random order that is computed from the row's number.
- **3** is 2 for text. Conversations, which 1 and 2 cut as they cut text, are whole (`document_rows.py`).

Of text, the remainder at the end of an epoch (less than a row) is not used in that epoch, and a row's last label is the
token that follows in this order; where none does, there is no label.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from jaxpar.data.randomness import KeyedPermutation, permutation, random_bits
from jaxpar.data.stream import TokenStream

SHUFFLE = STREAM_SHUFFLE = 3
"""Version of the order in which new runs use their data; the only one of conversations."""
FIRST_SHUFFLE = 1
"""Version of validation data, so that losses of all runs compare."""
BLOCK_TOKENS, BLOCK_ROWS = 2**18, 8
"""Tokens of a block, rounded down to full rows, and its minimum of rows. A larger block mixes more
documents, and a row takes longer: 0.1 ms more than version 1 where documents have 600 tokens, 0.3 ms where they have
60."""
CACHED_PARTS = 2**17
"""Documents of all cached blocks together; one block is always cached."""

_DOCUMENTS, _ROWS, _PARTS, _OFFSET = 0, 1, 2, 3

type Places = tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]
"""The position in the stream of each token of a row, and an increasing number of its document."""


class Order(ABC):
    """The order of a stream's epochs.

    Args:
        stream: the documents; at least a row.
        sequence_length: tokens per row.
        seed: with the epoch's number, determines the epoch's order.
    """

    def __init__(self, stream: TokenStream, sequence_length: int, seed: int) -> None:
        self.stream, self.sequence_length, self.seed = stream, sequence_length, seed
        self.rows = len(stream) // sequence_length
        """Rows of an epoch."""

    @abstractmethod
    def places(self, epoch: int, index: int) -> Places:
        """The row at a place of an epoch: `sequence_length` tokens, and the one that follows where there is one."""


class TableOrder(Order):
    """Version 1: a permutation of all documents, then of all rows."""

    def __init__(self, stream: TokenStream, sequence_length: int, seed: int) -> None:
        super().__init__(stream, sequence_length, seed)
        self._starts = stream.starts[:]
        self._tables: dict[int, _Tables] = {}
        self._lock = threading.Lock()

    def places(self, epoch: int, index: int) -> Places:
        """See `Order`."""
        tables = self._epoch_tables(epoch)
        first = int(tables.rows[index]) * self.sequence_length
        offsets = np.arange(first, min(first + self.sequence_length + 1, len(self.stream)))
        low, high = np.searchsorted(tables.stops, offsets[[0, -1]], side="right")
        document_at = low + np.searchsorted(tables.stops[low : high + 1], offsets, side="right")
        document = tables.documents[document_at]
        start_in_epoch = tables.stops[document_at] - self._lengths(document)
        return self._starts[document] + offsets - start_in_epoch, document_at

    def _lengths(self, documents: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        starts, last = self._starts, len(self._starts) - 1
        stops = np.where(documents == last, len(self.stream), starts[np.minimum(documents + 1, last)])
        return stops - starts[documents]

    def _epoch_tables(self, epoch: int) -> _Tables:
        """The epoch's tables; two are cached, for the batches at the boundary of two epochs."""
        with self._lock:
            if epoch not in self._tables:
                documents = permutation(len(self._starts), self.seed, epoch, _DOCUMENTS)
                stops = np.cumsum(self._lengths(documents))
                while len(self._tables) >= 2:
                    del self._tables[next(iter(self._tables))]
                rows = permutation(self.rows, self.seed, epoch, _ROWS)
                self._tables[epoch] = _Tables(documents, stops, rows)
            return self._tables[epoch]


class _Tables(NamedTuple):
    """An epoch of `TableOrder`."""

    documents: Int64[np.ndarray, " documents"]
    """Document at each place of the epoch's stream."""
    stops: Int64[np.ndarray, " documents"]
    """One past the last position of each document in the epoch's order."""
    rows: Int64[np.ndarray, " rows"]
    """The row at each index of the epoch."""


class BlockOrder(Order):
    """Versions 2 and 3."""

    def __init__(self, stream: TokenStream, sequence_length: int, seed: int) -> None:
        super().__init__(stream, sequence_length, seed)
        self._block_rows = max(BLOCK_ROWS, BLOCK_TOKENS // sequence_length)
        self._blocks: OrderedDict[tuple[int, int], _Block] = OrderedDict()
        self._epochs: OrderedDict[int, _Epoch] = OrderedDict()
        self._lock = threading.Lock()

    def places(self, epoch: int, index: int) -> Places:
        """See `Order`."""
        block_index, row = divmod(self._epoch(epoch).rows.permute(index), self._block_rows)
        block = self._block(epoch, block_index)
        first = row * self.sequence_length
        offsets = np.arange(first, min(first + self.sequence_length + 1, int(block.stops[-1])))
        part = np.searchsorted(block.stops, offsets, side="right")
        return block.shifts[part] + offsets, part

    def _epoch(self, epoch: int) -> _Epoch:
        with self._lock:
            if epoch not in self._epochs:
                offset = int(random_bits(1, self.seed, epoch, _OFFSET)[0]) % len(self.stream)
                self._epochs[epoch] = _Epoch(offset, KeyedPermutation(self.rows, self.seed, epoch, _ROWS))
                while len(self._epochs) > 2:
                    self._epochs.popitem(last=False)
            return self._epochs[epoch]

    def _block(self, epoch: int, index: int) -> _Block:
        """A block of an epoch; the last used ones are cached."""
        key = (epoch, index)
        with self._lock:
            if (cached := self._blocks.get(key)) is not None:
                self._blocks.move_to_end(key)
                return cached
        block = self._made(epoch, index)  # Not under the lock: other threads make other blocks.
        with self._lock:
            self._blocks[key] = block
            while len(self._blocks) > 1 and sum(len(each.stops) for each in self._blocks.values()) > CACHED_PARTS:
                self._blocks.popitem(last=False)
        return block

    def _made(self, epoch: int, index: int) -> _Block:
        first_row = index * self._block_rows
        size = min(self._block_rows, self.rows - first_row) * self.sequence_length
        total = len(self.stream)
        first = (self._epoch(epoch).offset + first_row * self.sequence_length) % total
        begins, lengths = self._parts(first, min(first + size, total))
        if first + size > total:
            more = self._parts(0, first + size - total)
            begins, lengths = np.concatenate([begins, more[0]]), np.concatenate([lengths, more[1]])
        order = permutation(len(begins), self.seed, epoch, _PARTS, index)
        begins, lengths = begins[order], lengths[order]
        stops = np.cumsum(lengths)
        return _Block(stops, begins - (stops - lengths))

    def _parts(self, first: int, last: int) -> tuple[Int64[np.ndarray, " parts"], Int64[np.ndarray, " parts"]]:
        """The first positions and lengths of the documents between two tokens, cut at both ends."""
        low, high = self.stream.starts.searchsorted([first, last - 1], side="right").tolist()
        begins = self.stream.starts[low - 1 : high].copy()
        begins[0] = first
        return begins, np.diff(begins, append=last)


class _Epoch(NamedTuple):
    """An epoch of `BlockOrder`."""

    offset: int
    """Position in the stream at which the first block begins."""
    rows: KeyedPermutation
    """The row at each index of the epoch."""


class _Block(NamedTuple):
    """A block's parts of documents in their order."""

    stops: Int64[np.ndarray, " parts"]
    """One past the last position of each part in the block."""
    shifts: Int64[np.ndarray, " parts"]
    """Offset from a position in the block to the position in the stream."""


ORDERS: dict[int, type[Order]] = {1: TableOrder, 2: BlockOrder, 3: BlockOrder}
"""The orders by version."""
