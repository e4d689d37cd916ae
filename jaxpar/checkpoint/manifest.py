"""The manifest of a checkpoint: the size and digest of every file, written last.

Orbax returns flipped bytes without an error, so checkpoints are verified here. A folder
without a manifest is half-written by definition.

A digest is BLAKE2b-256 over the BLAKE2b-256 digests of the file's 64 MiB pieces, so that several threads can work on
one large file (hashlib releases the interpreter lock).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from jaxpar.checkpoint.errors import Damage, reason
from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import quoted

MANIFEST = "manifest.json"
VERSION = 1
PIECE_BYTES = 64 * 2**20
READ_BYTES = 2**20
THREADS = min(8, os.cpu_count() or 1)


class Entry(NamedTuple):
    """The manifest's entry of one file: its size in bytes and its digest in hex."""

    size: int
    digest: str


def seal(folder: Path) -> None:
    """Write the manifest of a finished checkpoint folder, and make the whole of it durable.

    Files are flushed to disk as they are hashed; the manifest appears by a rename, so it is whole or absent.

    Raises:
        OSError: the disk is full, read-only or broken.
    """
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(MANIFEST)
    )
    digests = _digests(folder, names, flush=True)
    files = {name: Entry((folder / name).stat().st_size, digests[name]) for name in names}
    for directory in [path for path in folder.rglob("*") if path.is_dir()]:
        flush_directory(directory)
    temporary = folder / f"{MANIFEST}.tmp"
    with open(temporary, "wb") as file:
        file.write(encode(files))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / MANIFEST)
    flush_directory(folder)
    flush_directory(folder.parent)


def read(folder: Path) -> dict[str, Entry]:
    """The manifest's entries by file name, relative to `folder`.

    Raises:
        Damage: the manifest is absent, not exactly what `seal` writes, or names a file outside the folder.
    """
    try:
        raw = read_file(folder / MANIFEST)
    except FileNotFoundError:
        raise Damage(f"it is half-written (it has no {MANIFEST})") from None
    except UserError as error:
        raise Damage(f"its {MANIFEST} cannot be used ({error})") from None
    except OSError as error:
        raise Damage(f"its {MANIFEST} cannot be read ({reason(error)})") from error
    files = decode(raw)
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts:
            raise Damage(f"its {MANIFEST} names a file outside the checkpoint ({quoted(name)})")
        if not name.isprintable():  # NUL and lone surrogates, which no system call accepts
            raise Damage(f"its {MANIFEST} names a file that cannot be ({quoted(name)})")
    return files


def verify(folder: Path, only: Iterable[str] | None = None) -> None:
    """Read every file (or those named in `only`) and compare it with the manifest.

    Raises:
        Damage: the first difference found.
    """
    files = read(folder)
    names = sorted(files if only is None else only)
    for name in names:
        if name not in files:
            raise Damage(f"its {MANIFEST} does not list {name}")
        _verify_size(folder, name, files[name].size)
    try:
        digests = _digests(folder, names, flush=False)
    except OSError as error:
        raise Damage(f"{error.filename or 'a file'} cannot be read ({reason(error)})") from error
    for name in names:
        if digests[name] != files[name].digest:
            raise Damage(f"{name} is corrupt (its digest is not the one in {MANIFEST})")


def verify_sizes(folder: Path) -> None:
    """A cheap check that reads the manifest only: every file is there, with its size.

    Raises:
        Damage: the first difference found.
    """
    for name, entry in read(folder).items():
        _verify_size(folder, name, entry.size)


def flush_directory(folder: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _verify_size(folder: Path, name: str, size: int) -> None:
    try:
        found = (folder / name).stat().st_size
    except FileNotFoundError:
        raise Damage(f"{name} is missing") from None
    except OSError as error:
        raise Damage(f"{name} cannot be read ({reason(error)})") from error
    if found != size:
        raise Damage(f"{name} has {found} bytes instead of {size}")


def _digests(folder: Path, names: list[str], flush: bool) -> dict[str, str]:
    """Digests of the named files; with `flush` the files are made durable as well."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="digest") as pool:
        pieces = {}
        for name in names:
            size = (folder / name).stat().st_size
            starts = range(0, max(size, 1), PIECE_BYTES)
            pieces[name] = [pool.submit(_piece_digest, folder / name, start) for start in starts]
        flushes = [pool.submit(_flush_file, folder / name) for name in names] if flush else []
        for flushed in flushes:
            flushed.result()
        return {
            name: hashlib.blake2b(b"".join(piece.result() for piece in parts), digest_size=32).hexdigest()
            for name, parts in pieces.items()
        }


def _piece_digest(path: Path, start: int) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    remaining = PIECE_BYTES
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while remaining > 0 and (chunk := file.read(min(READ_BYTES, remaining))):
            digest.update(chunk)
            remaining -= len(chunk)
    return digest.digest()


def _flush_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def encode(files: dict[str, Entry]) -> bytes:
    """The manifest's text. It carries its own digest, and there is exactly one text for given entries."""
    body: dict[str, Any] = {
        "version": VERSION,
        "files": {name: {"size": entry.size, "digest": entry.digest} for name, entry in files.items()},
    }
    plain = json.dumps(body, sort_keys=True).encode()
    body["digest"] = hashlib.blake2b(plain, digest_size=32).hexdigest()
    return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()


def decode(raw: bytes) -> dict[str, Entry]:
    """The entries of a manifest's text.

    Raises:
        Damage: `encode` would not write this text.
    """
    corrupt = Damage(f"its {MANIFEST} is corrupt")
    try:
        body = json.loads(raw)
        version = body["version"]
        files = {name: Entry(entry["size"], entry["digest"]) for name, entry in body["files"].items()}
        # The text is a function of the entries, so writing them again finds any changed byte, blanks included.
        exact = encode(files) == raw
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise corrupt from None
    if version != VERSION and json.dumps(version).isdigit():
        raise Damage(f"its {MANIFEST} has version {version}, and this release reads version {VERSION}")
    if not exact:
        raise corrupt
    return files
