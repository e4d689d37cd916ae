"""Answers as rows of complete pairs of documents, one after the other: one chosen and one rejected, or one that is
marked and its prompt with another's answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from jaxpar.config.checks.loss import SHORTEST_PAIR
from jaxpar.data.document_rows import DocumentRows
from jaxpar.data.packing import NoRow, Row
from jaxpar.data.stream import TokenStream

DESIRABLE, UNDESIRABLE = 1, 2
"""Values of `TokenStream.loss_mask` for the tokens of an answer, by its mark."""


@dataclass
class Reference:
    """The reference's log-probabilities of a stream's documents, which are computed after the data is opened."""

    values: Float32[np.ndarray, " documents"] | None = None
    """Log-probability of what is counted of each document, in nats; NaN where no row has the document."""


class PairRows(DocumentRows):
    """Rows of whole pairs: documents 2i and 2i + 1 of the stream. A pair that is longer than a row is in none.

    A row has more arrays than one of conversations: `pairs`, the number of its pairs, and, once they are computed,
    `reference`, the reference's log-probability of each document, at the document's first token, and 0 at others.
    """

    noun = "pair"
    documents_each = 2
    shortest = SHORTEST_PAIR

    def __init__(self, stream: TokenStream, *, sequence_length: int, seed: int, name: str = "the data") -> None:
        super().__init__(stream, sequence_length=sequence_length, seed=seed, name=name)
        self.reference = Reference()

    def row(self, example: int) -> Row:
        """The row of an example."""
        row, documents = super().row(example), self.documents(example)
        row["pairs"] = np.array(len(documents) // 2, np.int32)
        if self.reference.values is None:
            return row
        firsts = np.flatnonzero(row["positions"] == 0)[: len(documents)]
        reference = np.zeros(self.sequence_length, np.float32)
        reference[firsts] = self.reference.values[documents]
        return row | {"reference": reference}


class LabelledRows(PairRows):
    """Rows of complete pairs whose second document is not in the data: the prompt of a document, followed by the
    answer of the document that is half the data further. The documents are in memory twice.

    A row has an array more than one of pairs: `label`, 1 at the first token of a desirable document, -1 of another, and
    0 at other tokens.
    """

    noun = "marked answer"

    def __init__(self, stream: TokenStream, *, sequence_length: int, seed: int, name: str = "the data") -> None:
        assert stream.loss_mask is not None, "answers have marks"
        if len(stream.starts) < 2:
            raise NoRow(f"{name} has one marked answer; expected at least 2, since each is compared with another's")
        starts, marks = stream.starts[:], stream.loss_mask[:]
        self._labels = np.where(np.maximum.reduceat(marks, starts) == UNDESIRABLE, -1, 1).astype(np.float32)
        super().__init__(with_unrelated(stream), sequence_length=sequence_length, seed=seed, name=name)

    def row(self, example: int) -> Row:
        """The row of an example."""
        row, documents = super().row(example), self.documents(example)
        label = np.zeros(self.sequence_length, np.float32)
        label[np.flatnonzero(row["positions"] == 0)[: len(documents) : 2]] = self._labels[documents[::2] // 2]
        return row | {"label": label}


def with_unrelated(stream: TokenStream) -> TokenStream:
    """Each document, followed by its prompt with the answer of another document."""
    assert stream.loss_mask is not None
    tokens, loss_mask, starts = stream.tokens[:], (stream.loss_mask[:] != 0).astype(np.uint8), stream.starts[:]
    stops, targets = starts + stream.lengths, np.append(np.flatnonzero(loss_mask), len(loss_mask))
    answers = np.minimum(targets[targets.searchsorted(starts)], stops)
    other = np.roll(np.arange(len(starts)), -(len(starts) // 2))
    parts = [
        slice(*span)
        for spans in zip(
            zip(starts, stops, strict=True), zip(starts, answers, strict=True),
            zip(answers[other], stops[other], strict=True), strict=True,
        )
        for span in spans
    ]  # fmt: skip
    lengths = np.stack([stops - starts, answers - starts + stops[other] - answers[other]], axis=1).ravel()
    return TokenStream(
        np.concatenate([tokens[part] for part in parts]),
        np.concatenate([[0], np.cumsum(lengths)[:-1]]),
        np.concatenate([loss_mask[part] for part in parts]),
    )
