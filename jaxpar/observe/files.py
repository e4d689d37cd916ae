"""Files written atomically, append-only files, and strict JSON."""

from __future__ import annotations

import os
import re
from pathlib import Path
from uuid import uuid4

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp\Z")


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that a kill or a full disk leaves either the old file or the new one.

    Raises:
        OSError: The file cannot be written; an old file at `path` is unchanged.
    """
    # Process ids repeat across the machines and containers that share a folder.
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that a killed `write_atomically` left in `folder`. No one else may be writing there.

    Raises:
        OSError: the folder cannot be read or written.
    """
    for path in folder.iterdir():
        if _TEMPORARY.match(path.name):
            path.unlink()


class GrowingFile:
    """An append-only file of whole pieces, also over times in which nothing can be written.

    Pieces that a full disk did not take are kept and written first at the next append.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._left = b""

    def append(self, content: bytes) -> None:
        """Append `content`, past Python's own buffers.

        Raises:
            OSError: Part of it could not be written yet.
        """
        self._left += content
        while self._left:
            written = self._file.write(self._left)
            self._left = self._left[written:]

    def close(self) -> None:
        """Write what is left and close.

        Raises:
            OSError: Part of it could not be written and is lost.
        """
        try:
            self.append(b"")
        finally:
            self._file.close()
