"""Pairs of documents, one chosen and one rejected, as rows: whole pairs, the documents of each one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from jaxpar.config.checks.loss import SHORTEST_PAIR
from jaxpar.data.document_rows import DocumentRows
from jaxpar.data.packing import Row
from jaxpar.data.stream import TokenStream


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
