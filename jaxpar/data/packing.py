"""Packing: documents become rows of equal length, each row a pure function of (seed, example).

An epoch lays the documents end to end in a seeded order and cuts this stream into rows; a second seeded order
determines the row of each example, since neighbouring rows are often parts of one document. The remainder at the end of
an epoch (less than a row) is not used in that epoch. There are as many epochs as the examples need.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Int, Int64, UInt

from jaxpar.config.errors import UserError
from jaxpar.data.randomness import permutation
from jaxpar.data.stream import TokenStream

type Row = dict[str, np.ndarray]
"""`tokens`, `labels`, `segments`, `positions`, `indices` (int32) and `mask` (float32), each [sequence_length]."""

_DOCUMENTS, _ROWS = 0, 1


class Rows(Protocol):
    """An endless sequence of rows."""

    @property
    def sequence_length(self) -> int:
        """Tokens per row."""
        ...

    @property
    def stream(self) -> TokenStream:
        """The documents of the rows (a sample of them, where they are generated)."""
        ...

    def row(self, example: int) -> Row:
        """The row of an example, the same on every call and every host."""
        ...

    def epochs(self, examples: int) -> dict[str, float]:
        """Name of each source to its epochs, once the examples below `examples` are used."""
        ...


@dataclass(frozen=True)
class _Order:
    """The order of one epoch."""

    documents: Int64[np.ndarray, " documents"]
    """Document at each place of the epoch's stream."""
    ends: Int64[np.ndarray, " documents"]
    """Where the document at each place ends in the epoch's stream."""
    rows: Int64[np.ndarray, " rows"]
    """Row at each place of the epoch."""


class PackedRows:
    """Rows of `sequence_length` tokens from the documents of a stream; see the module's text.

    Args:
        stream: the documents.
        sequence_length: tokens per row.
        packed: keep the documents of a row apart (see `assemble`).
        seed: with the epoch's number, determines the epoch's order.
        name: name of the source of the documents.

    Raises:
        UserError: the stream is shorter than a row.
    """

    def __init__(
        self, stream: TokenStream, *, sequence_length: int, packed: bool, seed: int, name: str = "the data"
    ) -> None:
        if len(stream) < sequence_length:
            raise UserError(
                f"data.sequence_length={sequence_length} is longer than {name}, which has {len(stream)} tokens; "
                f"expected at most {len(stream)}, or more data"
            )
        self.name = name
        self.stream = stream
        self.sequence_length = sequence_length
        self.packed = packed
        self.seed = seed
        self.rows_per_epoch = len(stream) // sequence_length
        self._orders: dict[int, _Order] = {}
        self._lock = threading.Lock()

    def row(self, example: int) -> Row:
        """The row of an example; example `rows_per_epoch` is the first of the second epoch, and so on."""
        epoch, place = divmod(example, self.rows_per_epoch)
        order = self._order(epoch)
        first = int(order.rows[place]) * self.sequence_length
        # One token beyond the row: the label of the row's last token.
        offsets = np.arange(first, min(first + self.sequence_length + 1, len(self.stream)))
        low, high = np.searchsorted(order.ends, offsets[[0, -1]], side="right")
        place_of = low + np.searchsorted(order.ends[low : high + 1], offsets, side="right")
        document = order.documents[place_of]
        start_in_epoch = order.ends[place_of] - self._lengths(document)
        tokens = self.stream.tokens[self.stream.starts[document] + offsets - start_in_epoch]
        return assemble(tokens, place_of, sequence_length=self.sequence_length, packed=self.packed)

    def epochs(self, examples: int) -> dict[str, float]:
        """Epochs of the documents, once the examples below `examples` are used."""
        return {self.name: examples / self.rows_per_epoch}

    def _lengths(self, documents: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        starts, last = self.stream.starts, len(self.stream.starts) - 1
        ends = np.where(documents == last, len(self.stream), starts[np.minimum(documents + 1, last)])
        return ends - starts[documents]

    def _order(self, epoch: int) -> _Order:
        """The epoch's order; two are cached, for the batches at the boundary of two epochs."""
        with self._lock:
            if epoch not in self._orders:
                documents = permutation(len(self.stream.starts), self.seed, epoch, _DOCUMENTS)
                ends = np.cumsum(self.stream.lengths[documents])
                while len(self._orders) >= 2:
                    del self._orders[next(iter(self._orders))]
                rows = permutation(self.rows_per_epoch, self.seed, epoch, _ROWS)
                self._orders[epoch] = _Order(documents, ends, rows)
            return self._orders[epoch]


def assemble(
    tokens: UInt[np.ndarray, " n"], documents: Int[np.ndarray, " n"], *, sequence_length: int, packed: bool
) -> Row:
    """A row from its tokens and the token after it.

    Packed: segments number the documents of the row from 1, positions restart at each document, and the label of a
    document's last token is masked (so the end-of-document token is predicted, and nothing is predicted from it).
    Not packed: one segment, positions 0 to `sequence_length - 1`, and only the end of the stream is masked.
    A label that is masked is 0.

    Args:
        tokens: `sequence_length` tokens and the next one, or `sequence_length` tokens that end the stream.
        documents: a number per token that grows from one document to the next.
        sequence_length: tokens per row.
        packed: keep documents apart.
    """
    assert len(tokens) in (sequence_length, sequence_length + 1), "a row, or a row and the token after it"
    same = documents[1:] == documents[:-1] if packed else np.ones(len(tokens) - 1, bool)
    mask = np.zeros(sequence_length, bool)
    mask[: len(same)] = same
    labels = np.zeros(sequence_length, np.int32)
    labels[: len(same)] = np.where(same, tokens[1:], 0)
    indices = np.arange(sequence_length, dtype=np.int32)
    begins = np.append(True, ~same[: sequence_length - 1])
    first_index = np.maximum.accumulate(np.where(begins, indices, 0))
    return {
        "tokens": tokens[:sequence_length].astype(np.int32),
        "labels": labels,
        "mask": mask.astype(np.float32),
        "segments": np.cumsum(begins, dtype=np.int32),
        "positions": indices - first_index,
        "indices": indices,
    }
