"""Pairs of documents, one chosen and one rejected, as rows: whole pairs, the documents of each one after the other.

Pairs are put into rows in a random order that depends on the seed, as many into a row as it has room for; the rest of
the row is padding, segment 0. Each epoch has the same rows in another order. A pair that is longer than a row is in
none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int64

from jaxpar.config.checks.loss import SHORTEST_PAIR
from jaxpar.config.errors import UserError
from jaxpar.data.keyed_permutation import KeyedPermutation
from jaxpar.data.packing import Row
from jaxpar.data.randomness import permutation
from jaxpar.data.stream import TokenStream
from jaxpar.units import plural

_PAIRS, _ROWS = 0, 1


@dataclass
class Reference:
    """The reference's log-probabilities of a stream's documents, which are computed after the data is opened."""

    values: Float32[np.ndarray, " documents"] | None = None
    """Log-probability of what is counted of each document, in nats; NaN where no row has the document."""


class PairRows:
    """Rows of whole pairs; see the module's text. A row has two arrays more than `packing.assemble` makes:

    `pairs`, the number of its pairs, and `reference`, the reference's log-probability of each document, at the
    document's first token, and 0 at others.

    Args:
        stream: documents 2i and 2i + 1 are a pair; the loss counts some of their tokens.
        sequence_length: tokens per row.
        seed: determines the rows and, with the epoch's number, their order.
        name: name of the source of the documents.

    Raises:
        UserError: every pair is longer than a row.
    """

    shuffle = None

    def __init__(self, stream: TokenStream, *, sequence_length: int, seed: int, name: str = "the data") -> None:
        assert stream.counted is not None and len(stream.starts) % 2 == 0, "pairs of documents with counted tokens"
        self.stream, self.sequence_length, self.seed, self.name = stream, sequence_length, seed, name
        self.reference = Reference()
        # A document's last token predicts nothing, so it takes no place.
        self._sizes: Int64[np.ndarray, "pairs 2"] = stream.lengths.reshape(-1, 2) - 1
        fits = np.flatnonzero(self._sizes.sum(1) <= sequence_length)
        if not len(fits):
            least = int(self._sizes.sum(1).min())
            raise UserError(
                f"data.sequence_length={sequence_length} is shorter than every pair of {name}; expected at least "
                f"{least}"
            )
        self._pairs = fits[permutation(len(fits), seed, _PAIRS)]
        self._firsts = _first_of_each_row(self._sizes[self._pairs].sum(1), sequence_length)
        self.rows_per_epoch = len(self._firsts) - 1

    @property
    def needed(self) -> Bool[np.ndarray, " documents"]:
        """Whether a row has the document."""
        found = np.zeros(len(self._sizes), bool)
        found[self._pairs] = True
        return np.repeat(found, 2)

    @property
    def description(self) -> str:
        """Words for how many pairs and rows there are."""
        left_out = len(self._sizes) - len(self._pairs)
        are = "is" if left_out == 1 else "are"
        but = f" ({plural(left_out, 'pair')} longer than a row {are} left out)" if left_out else ""
        return f"{plural(len(self._pairs), 'pair')} in {plural(self.rows_per_epoch, 'row')}{but}"

    def row(self, example: int) -> Row:
        """The row of an example; example `rows_per_epoch` is the first of the second epoch, and so on."""
        epoch, place = divmod(example, self.rows_per_epoch)
        number = KeyedPermutation(self.rows_per_epoch, self.seed, epoch, _ROWS).at(place)
        return self._assembled(self._pairs[self._firsts[number] : self._firsts[number + 1]])

    def _assembled(self, pairs: Int64[np.ndarray, " n"]) -> Row:
        length, counted = self.sequence_length, self.stream.counted
        assert counted is not None and self.reference.values is not None, "the reference's values are computed first"
        row = {name: np.zeros(length, np.int32) for name in ("tokens", "labels", "segments", "positions")}
        row |= {name: np.zeros(length, np.float32) for name in ("mask", "reference")}
        end = 0
        for number, document in enumerate(document for pair in pairs for document in (2 * pair, 2 * pair + 1)):
            size = int(self._sizes[document // 2, document % 2])
            first, place = int(self.stream.starts[document : document + 1][0]), slice(end, end + size)
            tokens, counts = (own[first : first + size + 1] for own in (self.stream.tokens, counted))
            row["tokens"][place], row["labels"][place] = tokens[:-1], np.where(counts[1:] != 0, tokens[1:], 0)
            row["mask"][place], row["positions"][place] = counts[1:] != 0, np.arange(size)
            row["segments"][place], row["reference"][end] = number + 1, self.reference.values[document]
            end += size
        return row | {"indices": np.arange(length, dtype=np.int32), "pairs": np.int32(len(pairs))}

    def epochs(self, examples: int) -> dict[str, float]:
        """Epochs of the pairs, once the examples below `examples` are used."""
        return {self.name: examples / self.rows_per_epoch}

    def shuffled(self, version: int) -> PairRows:
        """These rows: there is one version of their order."""
        del version
        return self


def _first_of_each_row(sizes: Int64[np.ndarray, " pairs"], length: int) -> Int64[np.ndarray, " rows_and_1"]:
    """The first pair of each row, and the number of pairs."""
    ends, found = np.cumsum(sizes), [0]
    while (first := found[-1]) < len(sizes):
        used = int(ends[first] - sizes[first])
        last = int(ends.searchsorted(used + length, side="right"))
        found.append(min(last, first + length // SHORTEST_PAIR))
    return np.array(found)
