"""URLs where paths are expected: files are read and written by path, on disks and mounted file systems alone.

Tokens are read a row at a time, and a save renames folders and waits until they are on the disk: object stores are slow
at the one and lack the other. A URL taken for a path would make a folder called `gs:` here.
"""

from __future__ import annotations

import re

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""Scheme and rest. `pathlib` makes one slash of two."""

_AZURE = "blobfuse2"
_MOUNTED_BY = {
    "gs": "gcsfuse",
    "s3": "mount-s3, which is Mountpoint for Amazon S3",
    **dict.fromkeys(("az", "abfs", "abfss", "wasb", "wasbs"), _AZURE),
}


def refuse_url(key: str, path: str, *, written: bool) -> None:
    """Refuse a URL, with how to mount a bucket that is read. Mounted buckets lack what saves need.

    Raises:
        UserError: `path` is a URL.
    """
    if (found := _url(key, path)) is None:
        return
    text, scheme, rest = found
    if written:
        raise UserError(
            f"{text}; expected a folder of a file system that all hosts share (NFS, Lustre), from where it can be "
            "copied to a bucket"
        )
    if scheme not in _MOUNTED_BY:
        raise UserError(f"{text}; expected a path, after a download or a mount")
    raise UserError(f"{text}; mount the bucket ({_MOUNTED_BY[scheme]}) and write its path, as in /mnt/{rest}")


def _url(key: str, path: str) -> tuple[str, str, str] | None:
    """The beginning of a message, the scheme and the rest, where `path` is a URL of another machine."""
    match = _URL.fullmatch(path)
    if match is None:
        return None
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        inside = rest.removeprefix("localhost/")
        raise UserError(f"{key}: {quoted(f'file:///{inside}')} is a URL; expected the path {quoted(f'/{inside}')}")
    text = f"{key}: {quoted(f'{match[1]}://{rest}')} is a URL"
    return text, scheme, rest
