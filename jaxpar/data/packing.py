"""Packing of text: documents are cut into rows of equal length, each row a pure function of (seed, example).

Which tokens a row has is up to the order of its epoch (`shuffle.py`). There are as many epochs as the examples need.
Conversations and pairs stay whole (`document_rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, UInt

from jaxpar.config.errors import UserError
from jaxpar.data.shuffle import ORDERS, SHUFFLE
from jaxpar.data.stream import TokenStream
from jaxpar.pages.units import plural

type Row = dict[str, np.ndarray]
"""`tokens`, `labels`, `segments`, `positions`, `indices` (int32) and `mask` (float32), each [sequence_length]."""


class NoRow(UserError):
    """There is not enough data for a row."""


class Rows(Protocol):
    """An endless sequence of rows."""

    @property
    def sequence_length(self) -> int:
        """Number of tokens in a row."""
        ...

    @property
    def stream(self) -> TokenStream:
        """The documents of the rows (a sample of them, where they are generated)."""
        ...

    @property
    def shuffle(self) -> int | None:
        """Version of the order of the documents (`shuffle.py`); None where there are none to order."""
        ...

    def shuffled(self, version: int) -> Rows:
        """These rows in the order of another version."""
        ...

    def row(self, example: int) -> Row:
        """The row of an example, the same on every call and every host."""
        ...

    def epochs(self, examples: int) -> dict[str, float]:
        """Name of each source to its epochs, once the examples below `examples` are used."""
        ...


@runtime_checkable
class PositionedRows(Rows, Protocol):
    """Rows that are made one after the other, so that a checkpoint has the position of the next ones."""

    def ask(self, examples: Sequence[int]) -> None:
        """Begin to make the rows of some examples, which are asked for next."""
        ...

    def positions(self, example: int) -> dict[str, Any]:
        """The argument of `continued`, as JSON: of all rows from an example on that this process makes."""
        ...

    def continued(self, saved: Mapping[str, Any]) -> PositionedRows:
        """These rows, continued from the positions of all processes; their `lanes` are joined."""
        ...


def plain_rows(rows: Rows) -> Rows:
    """Rows without the fields that `RowsWith` adds."""
    return rows.plain if isinstance(rows, RowsWith) else rows


class RowsWith:
    """Rows of a source with more fields, for what reads them from another package.

    Args:
        rows: of the source.
        more: makes the fields of a row.
    """

    def __init__(self, rows: Rows, more: Callable[[Row], Row]):
        self.plain, self._more = rows, more

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def row(self, example: int) -> Row:
        """The row of an example, with its further fields."""
        row = self.plain.row(example)
        return row | self._more(row)

    def shuffled(self, version: int) -> RowsWith:
        """These rows in the order of another version."""
        return self.like(self.plain.shuffled(version))

    def like(self, rows: Rows) -> RowsWith:
        """Other rows with the same fields."""
        return RowsWith(rows, self._more)


class PackedRows:
    """Rows of `sequence_length` tokens from the documents of a stream; see the module's text.

    Args:
        stream: the documents.
        sequence_length: tokens per row.
        packed: keep the documents of a row apart (see `assemble`).
        seed: with the epoch's number, determines the epoch's order.
        name: name of the source of the documents.
        shuffle: version of the order, one of `ORDERS`.

    Raises:
        NoRow: the stream is shorter than a row.
    """

    def __init__(
        self,
        stream: TokenStream,
        *,
        sequence_length: int,
        packed: bool,
        seed: int,
        name: str = "the data",
        shuffle: int = SHUFFLE,
    ) -> None:
        assert stream.loss_mask is None, "the loss counts all of a text"
        if len(stream) < sequence_length:
            raise NoRow(
                f"data.sequence_length={sequence_length} is longer than {name}, which has "
                f"{plural(len(stream), 'token')}; expected at most {len(stream)}, or more data"
            )
        self.name = name
        self.stream = stream
        self.sequence_length = sequence_length
        self.packed = packed
        self.seed = seed
        self.shuffle = shuffle
        self._order = ORDERS[shuffle](stream, sequence_length, seed)
        self.rows_per_epoch = self._order.rows

    def row(self, example: int) -> Row:
        """The row of an example; example `rows_per_epoch` is the first of the second epoch, and so on."""
        places, documents = self._order.places(*divmod(example, self.rows_per_epoch))
        tokens = self.stream.tokens[places]
        return assemble(tokens, documents, sequence_length=self.sequence_length, packed=self.packed)

    def places(self, example: int) -> Int[np.ndarray, " token"]:
        """The place in the stream of each token of an example's row."""
        return self._order.places(*divmod(example, self.rows_per_epoch))[0][: self.sequence_length]

    def epochs(self, examples: int) -> dict[str, float]:
        """Epochs of the documents, once the examples below `examples` are used."""
        return {self.name: examples / self.rows_per_epoch}

    def shuffled(self, version: int) -> PackedRows:
        """These rows in the order of another version."""
        if version == self.shuffle:
            return self
        return PackedRows(
            self.stream,
            sequence_length=self.sequence_length,
            packed=self.packed,
            seed=self.seed,
            name=self.name,
            shuffle=version,
        )


def assemble(
    tokens: UInt[np.ndarray, " n"],
    documents: Int[np.ndarray, " n"],
    *,
    sequence_length: int,
    packed: bool,
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
