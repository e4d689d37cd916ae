"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxpar.checkpoint.manifest import flush_directory
from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named


def check_new(out: Path) -> None:
    """Refuse the name of something that exists, or whose parent does not.

    Raises:
        UserError: see above.
    """
    if out.exists() or out.is_symlink():
        raise UserError(f"OUT: {named(out)} exists; expected a new name")
    if not out.absolute().parent.is_dir():
        raise UserError(f"OUT: the folder {named(out.absolute().parent)} does not exist")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out`, which becomes `out` at the end; after an error it is deleted.

    A kill leaves it behind, under a hidden name with the process's number.

    Raises:
        UserError: `out` exists, or it cannot be written.
    """
    check_new(out)
    out = out.absolute()
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        _flush(temporary)
        temporary.rename(out)
        flush_directory(out.parent)
    except OSError as error:
        raise UserError(f"OUT: {named(out)} cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Make the files of a folder durable."""
    for path in folder.rglob("*"):
        if path.is_dir():
            flush_directory(path)
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
    flush_directory(folder)
