"""The log-probabilities that a reference model gives to the documents of a token folder, in a file beside them.

The name of a file has the digest of what its values depend on (the folder, the split, the model, the precision), so
those of another model or of other tokens are never taken for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import named
from jaxpar.data.tokens.digests import DIGEST_BYTES, digest
from jaxpar.data.tokens.token_folder import npy_header

VERSION = 1


class ReferenceFile:
    """The values of the documents of a split.

    Args:
        folder: the token folder.
        facts: what the values depend on.
        documents: how many there are.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str], documents: int) -> None:
        name = digest(json.dumps({"version": VERSION, **facts}, sort_keys=True).encode())[:24]
        self.path = folder / f"reference-{name}.npy"
        self._documents = documents
        self._header = npy_header(np.dtype(np.float32), documents)

    def read(self) -> Float32[np.ndarray, " documents"] | None:
        """The values, NaN for documents without one; None where there is no file.

        Raises:
            UserError: the file is damaged, or is no regular file.
            OSError: it cannot be read.
        """
        wanted = len(self._header) + np.dtype(np.float32).itemsize * self._documents + DIGEST_BYTES
        try:
            raw = read_file(self.path, wanted)
        except FileNotFoundError:
            return None
        content, sealed = raw[:-DIGEST_BYTES], raw[-DIGEST_BYTES:]
        if len(raw) == wanted and content.startswith(self._header) and bytes.fromhex(digest(content)) == sealed:
            return np.frombuffer(content, np.float32, offset=len(self._header)).copy()
        raise UserError(f"{named(self.path)} is damaged; remove it, and the same command computes its values again")

    def encoded(self, values: Float32[np.ndarray, " documents"]) -> bytes:
        """The bytes of the file: an array in NumPy's format, and their digest."""
        assert values.shape == (self._documents,) and values.dtype == np.float32, "a value for each document"
        content = self._header + values.tobytes()
        return content + bytes.fromhex(digest(content))
