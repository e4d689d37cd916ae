"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from jaxpar.config.errors import UserError
from jaxpar.config.paths import flush_folder
from jaxpar.config.reading.text_file import read_file
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

    A kill leaves it behind, under a hidden name that no other call uses.

    Raises:
        UserError: `out` exists, or it cannot be written.
    """
    out = out.absolute()
    temporary = out.with_name(f".{uuid4().hex}.tmp")
    try:
        check_new(out)
        temporary.mkdir()
        yield temporary
        _flush(temporary)
        temporary.rename(out)
        flush_folder(out.parent)
    except OSError as error:
        raise UserError(f"OUT: {named(out)} cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def copy_beside(file: Path, to: Path, model: Path | None = None) -> None:
    """Copy a small file of a folder in Hugging Face's format.

    Args:
        file: the file.
        to: the copy.
        model: the folder; by default that which the file is in.

    Raises:
        UserError: it is no regular file, is larger than any such file, or leads out of its folder, other than to the
            blobs of Hugging Face's cache.
        OSError: it cannot be read, or `to` not be written.
    """
    folder, target = (model or file.parent).resolve(), file.resolve()
    if not any(
        target.is_relative_to(folder_of_source) for folder_of_source in (folder, folder.parent.parent / "blobs")
    ):
        raise UserError(f"{named(file)}: leads out of its folder, to {named(target)}; expected a file in it")
    to.write_bytes(read_file(file))


def _flush(folder: Path) -> None:
    """Make the files of a folder durable."""
    for path in folder.rglob("*"):
        if path.is_dir():
            flush_folder(path)
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
    flush_folder(folder)
