"""URLs where paths are expected: `file://` is a path, and `s3://`, `gs://` and `hf://` are of object stores.

Settings and arguments that take a URL of a store say so (`jaxpar/remote/` reads and writes there); the others are read
and written by path, and a URL taken for a path would make a folder called `gs:` here.
"""

from __future__ import annotations

import re

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import join_or, quoted

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""Scheme and rest. `pathlib` makes one slash of two."""

STORES = ("s3", "gs", "hf")
"""Schemes of the stores that are read."""
WRITABLE = ("s3", "gs")
"""Schemes of the stores that are written to."""


def store_url(key: str, path: str, *, written: bool = False) -> str | None:
    """The URL of an object store that a user wrote, in full and without a slash at its end; None for a path.

    Args:
        key: the configuration key or flag, for messages.
        path: what the user wrote.
        written: whether it is written to, and not only read.

    Raises:
        UserError: it is the URL of something else, names no bucket, or has credentials, which are not repeated.
    """
    match = _URL.fullmatch(path)
    if match is None or match[1].lower() == "file":
        return None
    scheme, rest = match[1].lower(), match[2].rstrip("/")
    if scheme != "hf" and "@" in rest.split("/")[0]:  # hf://model@revision
        raise UserError(
            f"{key}: the {scheme}:// URL has a user or password in it; expected them where the store's library looks "
            "(docs/object-stores.md)"
        )
    url = f"{scheme}://{rest}"
    schemes = WRITABLE if written else STORES
    if scheme not in schemes:
        expected = join_or([f"{one}://" for one in schemes])
        raise UserError(f"{key}: {quoted(url)} is a URL; expected a path, or a URL that begins with {expected}")
    if not rest:
        raise UserError(f"{key}: {quoted(url)} names no bucket; expected one, as in {scheme}://bucket/folder")
    return url


def path_of(key: str, path: str) -> str:
    """A path as it is, or that of a `file://` URL.

    Raises:
        UserError: it is the URL of something else.
    """
    match = _URL.fullmatch(path)
    if match is None:
        return path
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        return "/" + rest.removeprefix("localhost/")
    url = store_url(key, path)
    raise UserError(f"{key}: {quoted(url)} is a URL; expected a path here (docs/object-stores.md lists what takes one)")
