"""The errors of checkpoints, one sentence each."""

from __future__ import annotations

import errno
import os

from jaxpar.config.errors import UserError

DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EIO,
    errno.ESTALE,
)


def is_file_error(error: OSError) -> bool:
    """Whether an error is about a file or its disk, and not about a connection, a process or a device."""
    return error.filename is not None or error.errno in DISK_ERRORS


class CheckpointError(UserError):
    """A checkpoint could not be written or used; one sentence with the folder and the reason."""


class Damage(Exception):
    """The reason why a checkpoint folder is not intact. Its text completes the sentence "it is skipped because ..."."""


def reason(error: BaseException) -> str:
    """The cause of an error in a few words, such as `No space left on device`.

    Storage libraries wrap the operating system's message in paragraphs; this extracts it. Without one, the first
    line of the error is the reason.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    for code in DISK_ERRORS:
        if os.strerror(code) in text:
            return os.strerror(code)
    lines = text.strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
