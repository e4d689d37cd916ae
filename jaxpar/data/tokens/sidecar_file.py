"""A table about the tokens of a split, in a file beside them.

A file is a line of JSON (the digest of the folder's index, names that a column of the table has the indices of, the
number of rows), the columns as arrays of int64, and the digest of both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import named
from jaxpar.data.tokens.digests import DIGEST_BYTES, digest


def encode_table(columns: Sequence[np.ndarray], names: Sequence[str], identity: str) -> bytes:
    """The bytes of a file; `identity` is that of the token folder."""
    header = {"folder": identity, "names": list(names), "rows": len(columns[0])}
    arrays = b"".join(column.astype("<i8").tobytes() for column in columns)
    content = json.dumps(header, sort_keys=True).encode() + b"\n" + arrays
    return content + bytes.fromhex(digest(content))


def read_table(
    path: Path, identity: str, columns: int, flag: str
) -> tuple[Int64[np.ndarray, "column row"], tuple[str, ...]]:
    """The columns of a table and its names.

    Args:
        path: the file.
        identity: that of the token folder.
        columns: how many the table has.
        flag: the option of `python -m jaxpar.prepare` that makes it, for messages.

    Raises:
        UserError: the file is missing, damaged, or of other tokens.
    """
    makes = f"python -m jaxpar.prepare {flag}"
    try:
        raw = read_file(path)
    except FileNotFoundError:
        raise UserError(f"{named(path)} does not exist; {makes} FILE --out {path.parent} makes it") from None
    content, sealed = raw[:-DIGEST_BYTES], raw[-DIGEST_BYTES:]
    if bytes.fromhex(digest(content)) != sealed:
        raise UserError(f"{named(path)} is damaged; {makes} makes it again")
    line, _, arrays = content.partition(b"\n")
    header = json.loads(line)
    if header["folder"] != identity:
        raise UserError(f"{named(path)} is of other tokens; {makes} makes it again")
    return np.frombuffer(arrays, "<i8").reshape(columns, -1), tuple(header["names"])
