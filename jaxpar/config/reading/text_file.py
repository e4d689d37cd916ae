"""Reading files that a user names: they must be regular files, of a size that is plausible for their kind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named

LONGEST = 2**20
"""Limit in bytes for a file that a person writes: a configuration, a cluster, a table."""
LONGEST_WRITTEN = 2**28
"""Limit in bytes for a file that a program writes and reads whole: a plan, a tokenizer, an index."""

LONGEST_POINTER = 1024
"""Limit in bytes for the pointer that Git LFS leaves in place of a file."""
_POINTER = b"version https://git-lfs.github.com/spec/"

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def check_regular(path: str | Path, label: str | None = None) -> None:
    """Refuse files whose reading could block or never end. A folder passes: opening it gives a clear error.

    Args:
        path: the file.
        label: its name in messages; by default the path.

    Raises:
        UserError: it is a pipe, a device or a socket.
        OSError: there is no such file, or it cannot be looked at.
    """
    kind = _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    if kind is not None:
        raise UserError(f"{named(path) if label is None else label}: {kind}, expected a regular file")


def check_pointer(beginning: bytes, path: str | Path, label: str | None = None) -> None:
    """Refuse what Git LFS leaves in place of a file that was not fetched.

    Args:
        beginning: the first bytes of the file.
        path: the file.
        label: its name in messages; by default the path.

    Raises:
        UserError: see above.
    """
    if beginning.startswith(_POINTER):
        raise UserError(
            f"{named(path) if label is None else label}: a Git LFS pointer in place of the file; expected the file, "
            "which `git lfs pull` fetches"
        )


def read_file(path: str | Path, limit: int | None = LONGEST_WRITTEN, label: str | None = None) -> bytes:
    """The contents of a regular file of at most `limit` bytes (None: of any size).

    Raises:
        UserError: it is a pipe, a device, a socket or a Git LFS pointer, or larger.
        OSError: it cannot be read.
    """
    check_regular(path, label)
    with open(path, "rb") as file:
        # Python allocates as much as is asked for, and the sizes of files in /proc are 0.
        size = os.fstat(file.fileno()).st_size
        large = limit is not None and size > limit
        content = file.read() if limit is None else file.read(0 if large else min(limit, max(size, 2**20)) + 1)
    if large or (limit is not None and len(content) > limit):
        raise UserError(
            f"{named(path) if label is None else label}: more than {limit} bytes, which no file of its kind has"
        )
    check_pointer(content, path, label)
    return content


def read_text_file(
    path: str | Path, limit: int | None = LONGEST, label: str | None = None, encoding: str = "utf-8"
) -> str:
    """The same as text, with line ends as `\\n`.

    Raises:
        UserError: as `read_file`.
        OSError: it cannot be read.
        UnicodeDecodeError: it is not in that encoding.
    """
    text = read_file(path, limit, label).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")
