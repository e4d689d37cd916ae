"""Local copies of files in object stores, in a cache of limited size: the least recently used copies go first.

`<cache>/<digest>/<name>` is a copy of what a URL had; the digest is of its listing, so a copy never changes. The
variable `JAXPAR_CACHE` names the cache, and `JAXPAR_CACHE_SIZE` limits it. Beside each copy are two files that
processes of this host lock: `.fetch` by the one that copies, `.use` by all that read, until they end.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_location, user_path
from jaxpar.config.spelling import named, quoted
from jaxpar.pages.units import parse_size, size
from jaxpar.remote.store import StoredFile, StoreError, download, listed, run_in_threads

FOLDER, DEFAULT_FOLDER = "JAXPAR_CACHE", "~/.cache/jaxpar/stores"
SIZE, DEFAULT_SIZE = "JAXPAR_CACHE_SIZE", "200GiB"
RESERVED = "bytes"
"""File of a copy with the bytes that it may take."""

type Choose = Callable[[Sequence[str]], Sequence[str]]
"""The names that are needed, of all names under a URL."""

_in_use: dict[Path, int] = {}
"""Copies that this process reads, to the descriptors that hold their locks."""
_urls: dict[Path, str] = {}
"""Local path of each copy of this process, and of each folder that is to be uploaded, to its URL."""


def local_path(location: str | Path, key: str, choose: Choose = lambda names: names) -> Path:
    """A path as it is, or that of a local copy of what a URL has now. A process keeps the copies that it uses.

    Args:
        location: what the user wrote.
        key: its configuration key or flag, for messages.
        choose: which files of a URL are needed.

    Raises:
        UserError: it can be neither, there is nothing at the URL, the store refuses, or the cache has no room.
    """
    where = user_location(location, key)
    if isinstance(where, Path):
        return where
    try:
        return _copy(where, key, choose)
    except StoreError as error:
        raise StoreError(f"{key}: {error}") from error
    except OSError as error:
        raise UserError(f"{key}: the copy of {where} cannot be written ({error.strerror or error})") from error


def source_url(path: Path) -> str:
    """The URL of which `path` is a copy, or in one; the path itself where it is none. Other hosts know the URL."""
    for copy in (path, *path.parents):
        if copy in _urls:
            return f"{_urls[copy]}/{path.relative_to(copy)}".removesuffix("/.")
    return str(path)


def note_url(path: Path, url: str) -> None:
    """Note what `source_url` is to return for a path."""
    _urls[path] = url


def cache_folder() -> Path:
    """The folder of the cache; made. Raises `UserError`."""
    folder = user_path(os.environ.get(FOLDER) or DEFAULT_FOLDER, FOLDER).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{FOLDER}: {named(folder)} cannot be written ({error.strerror})") from error
    return folder


def _copy(url: str, key: str, choose: Choose) -> Path:
    files = listed(url)
    chosen = {name: files[name] for name in choose(sorted(files))}
    if not chosen:
        what = "nothing is there" if not files else "nothing there is of use"
        raise UserError(f"{key}: {quoted(url)}: {what}; expected a folder or file of that name")
    for name in chosen:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise UserError(f"{key}: {quoted(url)} has a file {quoted(name)}, which would be outside its folder")
    last = PurePosixPath(url.partition("://")[2]).name
    alone = list(files) == [last]
    text = json.dumps([url, sorted(chosen.items())])
    entry = cache_folder() / hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    target = entry / last
    _use(entry)
    with _locked(Path(f"{entry}.fetch")):
        if missing := {name: file for name, file in chosen.items() if not _is_there(_file(target, name, alone), file)}:
            _make_room(entry, url, key, chosen)
            run_in_threads(
                [partial(_fetch, url, name, file, _file(target, name, alone), alone) for name, file in missing.items()]
            )
            now = listed(url)
            if changed := [name for name, file in missing.items() if now.get(name) != file]:
                for name in changed:  # what was copied may be a mixture
                    _file(target, name, alone).unlink()
                raise StoreError(
                    f"{url}: {named(changed[0])} changed while it was copied; the same command copies it again"
                )
    note_url(target, url)
    return target


def _file(target: Path, name: str, alone: bool) -> Path:
    return target if alone else target / name


def _is_there(path: Path, file: StoredFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size


def _fetch(url: str, name: str, file: StoredFile, path: Path, alone: bool) -> None:
    download(url if alone else f"{url}/{name}", file.size, path, path.with_name(f".{path.name}.part"))


def _use(entry: Path) -> None:
    """Lock a copy against removal until this process ends, and note the time."""
    if entry not in _in_use:
        descriptor = os.open(f"{entry}.use", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        _in_use[entry] = descriptor
    os.utime(_in_use[entry])


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with open(file, "ab") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _limit() -> int:
    text = os.environ.get(SIZE) or DEFAULT_SIZE
    try:
        return parse_size(text)
    except ValueError as error:
        raise UserError(f"{SIZE}: {error}") from None


def _make_room(entry: Path, url: str, key: str, files: Mapping[str, StoredFile]) -> None:
    """Reserve the bytes of a copy, and remove others that no process uses until they fit.

    Raises:
        UserError: they do not fit.
    """
    need, limit, folder = sum(file.size for file in files.values()), _limit(), entry.parent
    with _locked(folder / "room"):
        others = {one.parent: int(one.read_text() or 0) for one in folder.glob(f"*/{RESERVED}")}
        others.pop(entry, None)
        total = sum(others.values())
        for oldest in sorted(others, key=_last_use):
            if total + need <= limit:
                break
            if _removed(oldest):
                total -= others[oldest]
        if total + need > limit:
            raise UserError(
                f"{key}: {quoted(url)} has {size(need)}, and of the {size(limit)} of the cache {named(folder)} "
                f"{size(total)} are in use; set {SIZE} to more, or {FOLDER} to a larger disk"
            )
        entry.mkdir(exist_ok=True)
        (entry / RESERVED).write_text(str(need))


def _last_use(entry: Path) -> float:
    try:
        return os.stat(f"{entry}.use").st_mtime
    except FileNotFoundError:
        return 0.0


def _removed(entry: Path) -> bool:
    """Remove a copy unless a process uses it."""
    with open(f"{entry}.use", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        for path in entry.iterdir():
            if path.name != RESERVED:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(entry)  # its reservation is the last to go: a kill leaves nothing that is not counted
        return True
