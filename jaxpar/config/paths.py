"""Paths and hosts that a user names, in a configuration or on a command line; durable folders."""

from __future__ import annotations

import os
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.config.urls import refuse_url

RUN_CONFIG = "config.yaml"
"""Name of the file, in the folder of a run, of its configuration."""


def user_path(path: str | Path, label: str, *, written: bool = False) -> Path:
    """A path as the system takes it, with a user's home folder in the place of `~`.

    Args:
        path: what the user wrote.
        label: the configuration key or flag, for messages.
        written: whether it is written to, and not only read.

    Raises:
        UserError: no file can have this name, there is no such user, or it is a URL.
    """
    text = str(path)
    refusal = f"{label}: {quoted(text)}"
    if not is_name(text):
        raise UserError(f"{refusal} has a NUL or half of a surrogate pair; expected a path in UTF-8")
    refuse_url(label, text, written=written)
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.split("/")[0]
        raise UserError(f"{refusal}: the home folder of {quoted(user)} is not known; write the path in full") from None


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
