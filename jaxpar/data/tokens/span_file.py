"""Spans of a token folder's documents, each of a kind, in a file of each split beside its tokens.

A file is a line of JSON (the digest of the folder's index, the names of kinds, the number of spans), the spans as three
arrays of int64, and the digest of both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import named
from jaxpar.data.tokens.digests import DIGEST_BYTES, digest


class Spans(NamedTuple):
    """Spans of a split in the order of its tokens; none overlaps another."""

    first: Int64[np.ndarray, " spans"]
    """The first token of each in the split's stream."""
    stop: Int64[np.ndarray, " spans"]
    """The token behind its last one."""
    kind: Int64[np.ndarray, " spans"]
    """Index of its kind among `names`."""
    names: tuple[str, ...]

    def at(self, tokens: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The span of each token of the stream, -1 without one."""
        span = np.searchsorted(self.first, tokens, side="right") - 1
        return np.where((span >= 0) & (tokens < np.append(self.stop, 0)[span]), span, -1)


def span_file(folder: Path, split: str) -> Path:
    """The file of a split's spans."""
    return folder / f"spans-{split}.bin"


def encode_spans(spans: Spans, identity: str) -> bytes:
    """The bytes of a file; `identity` is that of the token folder."""
    header = {"folder": identity, "names": list(spans.names), "spans": len(spans.first)}
    arrays = b"".join(part.astype("<i8").tobytes() for part in spans[:3])
    content = json.dumps(header, sort_keys=True).encode() + b"\n" + arrays
    return content + bytes.fromhex(digest(content))


def read_spans(path: Path, identity: str) -> Spans:
    """The spans of a split. Raises `UserError` where the file is missing, damaged, or of other tokens."""
    try:
        raw = read_file(path)
    except FileNotFoundError:
        raise UserError(
            f"{named(path)} does not exist; python -m jaxpar.prepare --spans FILE --out {path.parent} makes it"
        ) from None
    content, sealed = raw[:-DIGEST_BYTES], raw[-DIGEST_BYTES:]
    if bytes.fromhex(digest(content)) != sealed:
        raise UserError(f"{named(path)} is damaged; python -m jaxpar.prepare --spans makes it again")
    line, _, arrays = content.partition(b"\n")
    header = json.loads(line)
    if header["folder"] != identity:
        raise UserError(f"{named(path)} has spans of other tokens; python -m jaxpar.prepare --spans makes it again")
    first, stop, kind = np.frombuffer(arrays, "<i8").reshape(3, -1)
    return Spans(first, stop, kind, tuple(header["names"]))
