"""Paths and hosts that a user names, in a configuration or on a command line; durable folders."""

from __future__ import annotations

import os
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.config.urls import path_of, store_url

RUN_CONFIG = "config.yaml"
"""Name of the file, in the folder of a run, of its configuration."""


def user_path(path: str | Path, label: str) -> Path:
    """A path as the system takes it, with a user's home folder in the place of `~`.

    Args:
        path: what the user wrote: a path, or a `file://` URL.
        label: the configuration key or flag, for messages.

    Raises:
        UserError: no file can have this name, there is no such user, or it is another URL.
    """
    text = str(path)
    _check_name(label, text)
    text = path_of(label, text)
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.split("/")[0]
        raise UserError(
            f"{label}: {quoted(text)}: the home folder of {quoted(user)} is not known; write the path in full"
        ) from None


def user_location(path: str | Path, label: str, *, written: bool = False) -> str | Path:
    """The URL of an object store that a user wrote, or `user_path`.

    Raises:
        UserError: as `user_path` and `store_url`.
    """
    _check_name(label, str(path))
    return store_url(label, str(path), written=written) or user_path(path, label)


def _check_name(label: str, text: str) -> None:
    if not is_name(text):
        raise UserError(f"{label}: {quoted(text)} has a NUL or half of a surrogate pair; expected a path in UTF-8")


def is_name(text: str) -> bool:
    """Whether a file or folder may have this name: system calls accept neither NUL nor half of a surrogate pair."""
    return "\0" not in text and text == text.encode(errors="replace").decode()


def is_host(text: str) -> bool:
    """Whether a host may have this name: no label of it is empty or longer than 63 letters."""
    try:
        text.strip("[]").encode("idna")
    except UnicodeError:
        return False
    return is_name(text)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
