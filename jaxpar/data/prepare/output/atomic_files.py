"""Files that are written atomically."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted

TEMPORARY = ".tmp"


@contextmanager
def new_file(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file that appears at `path` once it is complete, and, if `durable`, is on the disk. Raises `OSError`."""
    temporary = path.with_name(f"{path.name}.{uuid4().hex}{TEMPORARY}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # The error of a full disk does not name the file.
        raise


def write_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write `content` to `path`, all of it or nothing. Raises `OSError`."""
    with new_file(path, durable=durable) as file:
        file.write(content)


@contextmanager
def folder_lock(folder: Path, lock: Path) -> Iterator[None]:
    """Hold the lock of `folder`; the system releases it when this process ends, however it ends.

    Raises:
        UserError: another process holds it.
        OSError: the lock cannot be made.
    """
    with open(lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"--out {quoted(str(folder))}: another preparation is at work there; wait for it to end"
            ) from None
        yield
