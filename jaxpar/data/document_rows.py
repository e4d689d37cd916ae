"""Rows of whole documents: conversations, or pairs of answers, as many into a row as it has room for.

They are put into rows in a random order that depends on the seed; no label and no attention crosses from one to the
next, and the rest of a row is padding, segment 0. Each epoch has the same rows in another order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Int64

from jaxpar.config.errors import UserError
from jaxpar.data.packing import NoRow, Row
from jaxpar.data.randomness import KeyedPermutation, permutation
from jaxpar.data.shuffle import STREAM_SHUFFLE
from jaxpar.data.stream import Tokens, TokenStream
from jaxpar.pages.units import plural

DROP, TRUNCATE_START, TRUNCATE_END = "drop", "truncate_start", "truncate_end"
"""Values of `data.long_conversations`."""
CHUNK_TOKENS = 2**22
_GROUPS, _ROWS = 0, 1


class DocumentRows:
    """Rows of whole conversations; see the module's text. Every row has a token that the loss counts.

    Args:
        stream: the documents, with the tokens that the loss counts.
        sequence_length: tokens per row.
        seed: determines the rows and, with the epoch's number, their order.
        name: name of the source of the documents.
        long: `data.long_conversations`.
        chunk_tokens: tokens whose marks are counted at once.

    Raises:
        NoRow: no conversation can be in a row.
    """

    noun = "conversation"
    documents_each = 1
    """Documents that share a row: one conversation, or the two of a pair."""
    shortest = 1
    """Tokens of the shortest in a row."""
    shuffle = STREAM_SHUFFLE

    def __init__(
        self,
        stream: TokenStream,
        *,
        sequence_length: int,
        seed: int,
        name: str = "the data",
        long: str = DROP,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> None:
        assert stream.loss_mask is not None, "conversations have marks of what the loss counts"
        self.stream, self.sequence_length, self.seed, self.name = stream, sequence_length, seed, name
        self._long = long
        starts = stream.starts[:]
        stops = starts + stream.lengths
        # A document's last token predicts nothing, so it takes no room.
        sizes = (stops - starts - 1).reshape(-1, self.documents_each).sum(1)
        too_long: Bool[np.ndarray, " groups"] = sizes > sequence_length
        if long == TRUNCATE_START:
            starts = np.maximum(starts, stops - sequence_length - 1)
        elif long == TRUNCATE_END:
            stops = np.minimum(stops, starts + sequence_length + 1)
        targets = targets_per_document(stream.loss_mask, starts, stops, chunk_tokens).reshape(-1, self.documents_each)
        empty: Bool[np.ndarray, " groups"] = (targets == 0).any(1)
        dropped = too_long if long == DROP else np.zeros(len(sizes), bool)
        self.dropped, self.empty = int(dropped.sum()), int((empty & ~dropped).sum())
        self.truncated = int((too_long & ~dropped & ~empty).sum())
        usable = np.flatnonzero(~dropped & ~empty)
        if not len(usable):
            raise NoRow(self._nothing_fits(int(sizes[~empty].min(initial=sizes.max()))))
        self._starts: Int64[np.ndarray, " documents"] = starts
        self._stops: Int64[np.ndarray, " documents"] = stops
        self._groups: Int64[np.ndarray, " groups"] = usable[permutation(len(usable), seed, _GROUPS)]
        sizes = (stops - starts - 1).reshape(-1, self.documents_each).sum(1)[self._groups]
        self._firsts = _first_of_each_row(sizes, sequence_length, max(1, sequence_length // self.shortest))
        self.rows_per_epoch = len(self._firsts) - 1

    def _nothing_fits(self, least: int) -> str:
        if self.dropped:
            other = "" if self.documents_each > 1 else f", or data.long_conversations: {TRUNCATE_START}"
            return (
                f"data.sequence_length={self.sequence_length} is shorter than every {self.noun} of {self.name}; "
                f"expected at least {least}{other}"
            )
        other = f", or data.long_conversations: {TRUNCATE_START}" if self._long == TRUNCATE_END else ""
        return (
            f"no {self.noun} of {self.name} has a token that the loss counts within "
            f"data.sequence_length={self.sequence_length}; expected a longer one{other}"
        )

    @property
    def description(self) -> str:
        """Words for how many conversations, or pairs, and rows there are, and how many are left out or truncated."""
        side = "beginning" if self._long == TRUNCATE_START else "end"
        cases = (
            (self.dropped, "longer than a row", "left out"),
            (self.truncated, "longer than a row", f"truncated at the {side}"),
            (self.empty, "without a counted token", "left out"),
        )
        notes = [
            f"{plural(count, self.noun)} {which} {'is' if count == 1 else 'are'} {fate}"
            for count, which, fate in cases
            if count
        ]
        described = f"{plural(len(self._groups), self.noun)} in {plural(self.rows_per_epoch, 'row')}"
        return described + (f" ({'; '.join(notes)})" if notes else "")

    @property
    def needed(self) -> Bool[np.ndarray, " documents"]:
        """Whether a row has the document."""
        in_rows = np.zeros(len(self._starts) // self.documents_each, bool)
        in_rows[self._groups] = True
        return np.repeat(in_rows, self.documents_each)

    def documents(self, example: int) -> Int64[np.ndarray, " n"]:
        """The documents of an example's row; example `rows_per_epoch` is the first of the second epoch, and so on."""
        epoch, index = divmod(example, self.rows_per_epoch)
        row = KeyedPermutation(self.rows_per_epoch, self.seed, epoch, _ROWS).permute(index)
        groups = self._groups[self._firsts[row] : self._firsts[row + 1]]
        return (groups[:, None] * self.documents_each + np.arange(self.documents_each)).ravel()

    def row(self, example: int) -> Row:
        """The row of an example."""
        length, loss_mask = self.sequence_length, self.stream.loss_mask
        assert loss_mask is not None
        row: Row = {name: np.zeros(length, np.int32) for name in ("tokens", "labels", "segments", "positions")}
        row["mask"] = np.zeros(length, np.float32)
        end = 0
        for segment, document in enumerate(self.documents(example).tolist(), 1):
            span = slice(int(self._starts[document]), int(self._stops[document]))
            tokens, predicted = self.stream.tokens[span], loss_mask[span][1:] != 0
            positions = slice(end, end + len(predicted))
            row["tokens"][positions], row["labels"][positions] = tokens[:-1], np.where(predicted, tokens[1:], 0)
            row["mask"][positions], row["positions"][positions] = predicted, np.arange(len(predicted))
            row["segments"][positions] = segment
            end = positions.stop
        return row | {"indices": np.arange(length, dtype=np.int32)}

    def epochs(self, examples: int) -> dict[str, float]:
        """Epochs of the rows, once the examples below `examples` are used."""
        return {self.name: examples / self.rows_per_epoch}

    def shuffled(self, version: int) -> DocumentRows:
        """These rows. Raises `UserError` for a version of the order that cut conversations into rows."""
        if version != self.shuffle:
            raise UserError(
                f"the checkpoint is of a release that cut the conversations of {self.name} at the ends of rows, and "
                "this one packs whole conversations; expected that release, or a new run with run.init_from"
            )
        return self


def targets_per_document(
    loss_mask: Tokens,
    starts: Int64[np.ndarray, " documents"],
    stops: Int64[np.ndarray, " documents"],
    chunk_tokens: int = CHUNK_TOKENS,
) -> Int64[np.ndarray, " documents"]:
    """The number of tokens of each document that the loss counts, its first token left out: nothing predicts it.

    Args:
        counted: 1 for each token that the loss counts.
        starts: the first token of each document, in order.
        stops: one more than its last token, in order.
        chunk_tokens: the largest number of tokens at once.
    """
    targets = np.zeros(len(starts), np.int64)
    for part in _chunks(starts, stops, chunk_tokens):
        first = int(starts[part.start])
        chunk = loss_mask[first : int(stops[part.stop - 1])]
        sums = np.zeros(len(chunk) + 1, np.int32)
        np.cumsum(chunk, dtype=np.int32, out=sums[1:])
        targets[part] = sums[stops[part] - first] - sums[starts[part] + 1 - first]
    return targets


def _chunks(
    starts: Int64[np.ndarray, " documents"], stops: Int64[np.ndarray, " documents"], tokens: int
) -> Iterator[slice]:
    """Consecutive documents of at most `tokens` together; one that has more is alone."""
    first = 0
    while first < len(starts):
        last = max(first + 1, int(stops.searchsorted(starts[first] + tokens, side="right")))
        yield slice(first, last)
        first = last


def _first_of_each_row(sizes: Int64[np.ndarray, " groups"], length: int, most: int) -> Int64[np.ndarray, " rows_and_1"]:
    """The first group of each row of at most `length` tokens and `most` groups, and the number of groups."""
    stops, firsts = np.cumsum(sizes), [0]
    while (first := firsts[-1]) < len(sizes):
        used = int(stops[first] - sizes[first])
        last = int(stops.searchsorted(used + length, side="right"))
        firsts.append(min(last, first + most))
    return np.array(firsts)
