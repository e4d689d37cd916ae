"""A file with the key of a server."""

from __future__ import annotations

from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.spelling import named


def read_key(path: str | Path, key: str) -> str:
    """The key in a file, which `key` names for messages. Raises `UserError`."""
    try:
        text = Path(user_path(path, key)).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not UTF-8")
        raise UserError(f"{key} {named(path)}: cannot be read ({why})") from None
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise UserError(f"{key} {named(path)}: expected one line with a key of ASCII letters, without spaces")
    return text
