"""Relations between spans of a token folder's documents, in a file of each split beside its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64

from jaxpar.data.tokens.sidecar_file import encode_table, read_table

type OfTriples = Int64[np.ndarray, " triples"]


class Triples(NamedTuple):
    """Relations of a split in the order of their heads; spans are from a first token of the stream to a stop."""

    head: OfTriples
    head_stop: OfTriples
    relation: OfTriples
    """Index of the relation among `names`."""
    tail: OfTriples
    tail_stop: OfTriples
    hop: OfTriples
    """Edges of the knowledge graph from the head to the tail, from 1."""
    names: tuple[str, ...]

    def row_triples(
        self, tokens: Int64[np.ndarray, " n"], weights: Float32[np.ndarray, " triples"], most: int
    ) -> tuple[Int32[np.ndarray, "most four"], Float32[np.ndarray, " most"]]:
        """The first `most` triples with both spans in a row, by indices in it, and their weights; zeros are none.

        Args:
            tokens: the token of the stream at each index of the row.
            weights: of all triples; those of 0 are left out.
            most: how many there may be.
        """
        spans, chosen = np.zeros((most, 4), np.int32), np.zeros(most, np.float32)
        used = 0
        for first, stop in _runs(tokens):
            begin, end = int(tokens[first]), int(tokens[stop - 1]) + 1
            among = slice(*np.searchsorted(self.head, [begin, end]).tolist())
            edges = np.stack([self.head, self.head_stop, self.tail, self.tail_stop], axis=1)[among]
            inside = (edges[:, 1::2] <= end).all(1) & (edges[:, 2] >= begin) & (weights[among] > 0)
            edges, of_edges = edges[inside][: most - used], weights[among][inside][: most - used]
            behind = used + len(edges)
            spans[used:behind], chosen[used:behind] = edges - begin + first, of_edges
            used = behind
        return spans, chosen


def _runs(tokens: np.ndarray) -> Iterator[tuple[int, int]]:
    """Parts of a row whose tokens follow one another in the stream: first index, and the one behind the last."""
    bounds = np.flatnonzero(np.diff(tokens) != 1) + 1
    yield from zip([0, *bounds.tolist()], [*bounds.tolist(), len(tokens)], strict=True)


def triple_file(folder: Path, split: str) -> Path:
    """The file of a split's triples."""
    return folder / f"triples-{split}.bin"


def encode_triples(triples: Triples, identity: str) -> bytes:
    """The bytes of a file; `identity` is that of the token folder."""
    return encode_table(triples[:6], triples.names, identity)


def read_triples(path: Path, identity: str) -> Triples:
    """The triples of a split. Raises `UserError` where the file is missing, damaged, or of other tokens."""
    columns, names = read_table(path, identity, 6, "--triples")
    return Triples._make((*columns, names))
