"""URLs where paths are expected: files are read and written by path, on disks and mounted file systems alone.

Token folders are mapped into memory, and a save renames folders and waits until they are on the disk: no object store
has these. A URL taken for a path would make a folder called `gs:` here.
"""

from __future__ import annotations

import re

from jaxpar.config.errors import UserError
from jaxpar.config.schema import Config
from jaxpar.config.spelling import quoted

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""Scheme and rest. `pathlib` makes one slash of two."""

_AZURE = "blobfuse2"
_MOUNTED_BY = {
    "gs": "gcsfuse",
    "s3": "mount-s3, which is Mountpoint for Amazon S3",
    **dict.fromkeys(("az", "abfs", "abfss", "wasb", "wasbs"), _AZURE),
}


def check_paths(config: Config) -> None:
    """Refuse a URL in any key that names a file or a folder. JAX itself reads `run.compile_cache`.

    Raises:
        UserError: the first one.
    """
    data = config.data
    for key, path in (
        ("data.path", data.path),
        *(("data.sources", path) for path in data.sources or ()),
        ("data.heldout_path", data.heldout_path),
        ("distributed.secret_file", config.distributed.secret_file),
        ("parallel.schedule", config.parallel.schedule),
    ):
        check_input(key, path)
    for key, path in (("run.dir", config.run.dir), ("memory.offload_dir", config.memory.offload_dir)):
        check_output(key, path)


def check_input(key: str, path: str | None) -> None:
    """Refuse a URL of something to read; the message says how to mount it.

    Raises:
        UserError: `path` is a URL.
    """
    if (found := _url(key, path)) is None:
        return
    said, scheme, rest = found
    if scheme not in _MOUNTED_BY:
        raise UserError(f"{said}; expected a path, after a download or a mount")
    raise UserError(f"{said}; mount the bucket ({_MOUNTED_BY[scheme]}) and write its path, as in /mnt/{rest}")


def check_output(key: str, path: str | None) -> None:
    """Refuse a URL of a folder to write to. Mounted buckets lack what saves need, so that they are no way out.

    Raises:
        UserError: `path` is a URL.
    """
    if (found := _url(key, path)) is not None:
        raise UserError(
            f"{found[0]}; expected a folder of a file system that all hosts share (NFS, Lustre), from where it can be "
            "copied to a bucket"
        )


def _url(key: str, path: str | None) -> tuple[str, str, str] | None:
    """The beginning of a message, the scheme and the rest, where `path` is a URL of another machine."""
    match = None if path is None else _URL.fullmatch(path)
    if match is None:
        return None
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        inside = rest.removeprefix("localhost/")
        raise UserError(f"{key}: {quoted(f'file:///{inside}')} is a URL; expected the path {quoted(f'/{inside}')}")
    said = f"{key}: {quoted(f'{match[1]}://{rest}')} is a URL"
    return said, scheme, rest
