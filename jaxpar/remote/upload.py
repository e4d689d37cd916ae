"""Uploads of folders: the file that makes a folder whole goes last, and an interrupted upload is continued.

While a folder is incomplete, `.uploading` in the store has what is to come, with its digests: files of the right size
beside the same `.uploading` are not sent again, and those beside another one are removed first.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_location
from jaxpar.config.spelling import quoted
from jaxpar.pages.units import plural, size
from jaxpar.remote.cache import cache_folder, note_url
from jaxpar.remote.store import (
    StoredFile,
    StoreError,
    listed,
    read,
    remove,
    run_in_threads,
    traffic,
    upload_file,
    write,
)

MARKER = ".uploading"


def begin(url: str, contents: bytes, last: Sequence[str]) -> dict[str, StoredFile]:
    """Begin or continue the upload of a folder; returns what is there already.

    Args:
        url: of the folder.
        contents: what the folder is to have, with digests; equal texts are equal folders.
        last: names, or patterns, of the files that make the folder whole.

    Raises:
        StoreError: the store refuses.
    """
    files = listed(url)
    if MARKER in files and read(f"{url}/{MARKER}") == contents:
        return files
    remove_folder(url, files, last)
    write(f"{url}/{MARKER}", contents)
    return {}


def remove_folder(url: str, names: Iterable[str], last: Sequence[str]) -> None:
    """Remove files of a folder, at first those that make it whole. Raises `StoreError`."""
    first, others = _divided(names, last)
    remove(f"{url}/{name}" for name in first)
    run_in_threads([partial(remove, [f"{url}/{name}"]) for name in others])


def send(folder: Path, url: str, names: Iterable[str], there: Mapping[str, StoredFile]) -> None:
    """Upload files of a folder at once, but for those that are there.

    Raises:
        StoreError: the store refuses.
        OSError: a file cannot be read.
    """
    sizes = {name: (folder / name).stat().st_size for name in names}
    missing = [name for name, size in sizes.items() if name not in there or there[name].size != size]
    run_in_threads([partial(upload_file, folder / name, f"{url}/{name}") for name in missing])


def finish(folder: Path, url: str, contents: bytes, names: Sequence[str], last: Sequence[str]) -> None:
    """Make a folder whole whose other files are uploaded; `contents` and `last` are those of `begin`.

    Raises:
        StoreError: one is not there, another upload has begun, or the store refuses.
    """
    final, others = _divided(names, last)
    files = listed(url)
    if read(f"{url}/{MARKER}") != contents:
        raise StoreError(f"{url}: another upload to it has begun, and this one ends")
    for name in others:
        if name not in files or files[name].size != (folder / name).stat().st_size:
            raise StoreError(f"{url}/{name}: it was uploaded, and the store does not list it with its size")
    for name in final:
        upload_file(folder / name, f"{url}/{name}")
    remove([f"{url}/{MARKER}"])


@contextmanager
def folder_to_write(out: str | Path, key: str, last: Sequence[str], report: Callable[[str], None]) -> Iterator[Path]:
    """The path of a folder to write, which is uploaded after the block where `out` is a URL.

    The same command continues an upload, and what it needs of an earlier call is still in the folder.

    Args:
        out: what the user wrote.
        key: its flag, for messages.
        last: as of `begin`.
        report: takes a sentence about the upload.

    Raises:
        UserError: something is at the URL, or the store refuses; the files then stay where the message says.
    """
    where = user_location(out, key, written=True)
    if isinstance(where, Path):
        yield where
        return
    try:
        files = listed(where)
    except StoreError as error:
        raise StoreError(f"{key}: {error}") from error
    if files and MARKER not in files:
        raise UserError(f"{key}: {quoted(where)} exists; expected a new name")
    folder = cache_folder() / "out" / hashlib.blake2b(where.encode(), digest_size=12).hexdigest()
    begun = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / where.rsplit("/", 1)[-1]
    note_url(path, where)
    try:
        yield path
    except UserError as error:
        if not begun:
            shutil.rmtree(folder)
        raise type(error)(str(error).replace(str(path), where)) from error
    before = traffic.retries
    try:
        count, total = _upload(path, where, last)
    except StoreError as error:
        raise StoreError(
            f"{key}: {error}; the same command continues the upload, and the files are in {path}"
        ) from error
    shutil.rmtree(folder)
    retries = traffic.retries - before
    report(f"Uploaded {plural(count, 'file')} ({size(total)}) to {where}, with {plural(retries, 'retry', 'retries')}.")


def _upload(folder: Path, url: str, last: Sequence[str]) -> tuple[int, int]:
    """Upload a folder; returns how many files it has, and their bytes."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    digests = {}
    for name in names:
        with open(folder / name, "rb") as file:
            digests[name] = hashlib.file_digest(file, "blake2b").hexdigest()
    there = begin(url, contents := json.dumps(digests).encode(), last)
    send(folder, url, _divided(names, last)[1], there)
    finish(folder, url, contents, names, last)
    return len(names), sum((folder / name).stat().st_size for name in names)


def _divided(names: Iterable[str], last: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names that make a folder whole, and the others."""
    final, others = list[str](), list[str]()
    for name in names:
        (final if any(fnmatchcase(name, pattern) for pattern in last) else others).append(name)
    return final, others
