"""Spans of a token folder's documents, each of a kind, in a file of each split beside its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from jaxpar.data.tokens.sidecar_file import encode_table, read_table


class Spans(NamedTuple):
    """Spans of a split in the order of its tokens; none overlaps another."""

    first: Int64[np.ndarray, " spans"]
    """The first token of each in the split's stream."""
    stop: Int64[np.ndarray, " spans"]
    """The token behind its last one."""
    kind: Int64[np.ndarray, " spans"]
    """Index of its kind among `names`."""
    names: tuple[str, ...]

    def span_indices(self, tokens: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The span of each token of the stream, -1 without one."""
        span = np.searchsorted(self.first, tokens, side="right") - 1
        return np.where((span >= 0) & (tokens < np.append(self.stop, 0)[span]), span, -1)


def span_file(folder: Path, split: str) -> Path:
    """The file of a split's spans."""
    return folder / f"spans-{split}.bin"


def encode_spans(spans: Spans, identity: str) -> bytes:
    """The bytes of a file; `identity` is that of the token folder."""
    return encode_table(spans[:3], spans.names, identity)


def read_spans(path: Path, identity: str) -> Spans:
    """The spans of a split. Raises `UserError` where the file is missing, damaged, or of other tokens."""
    columns, names = read_table(path, identity, 3, "--spans")
    return Spans._make((*columns, names))
