"""Digests of a checkpoint's files.

A digest is BLAKE2b-256 over the BLAKE2b-256 digests of the file's 64 MiB pieces, so that several threads can work on
one large file (hashlib releases the interpreter lock).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

PIECE_BYTES = 64 * 2**20
READ_BYTES = 2**20
THREADS = min(8, os.cpu_count() or 1)


class Entry(NamedTuple):
    """The manifest's entry of one file: its size in bytes and its digest in hex."""

    size: int
    digest: str


def file_entries(folder: Path, names: Iterable[str], *, flush: bool) -> dict[str, Entry]:
    """Sizes and digests of the named files of `folder`; with `flush` the files are made durable as well.

    Raises:
        OSError: a file cannot be read, or the disk is full or broken.
    """
    with ThreadPoolExecutor(THREADS, thread_name_prefix="digest") as pool:
        sizes = {name: (folder / name).stat().st_size for name in names}
        pieces = {
            name: [pool.submit(_piece_digest, folder / name, start) for start in range(0, max(size, 1), PIECE_BYTES)]
            for name, size in sizes.items()
        }
        flushes = [pool.submit(_flush_file, folder / name) for name in sizes] if flush else []
        for flushed in flushes:
            flushed.result()
        digests = {name: b"".join(piece.result() for piece in parts) for name, parts in pieces.items()}
    return {
        name: Entry(size, hashlib.blake2b(digests[name], digest_size=32).hexdigest()) for name, size in sizes.items()
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
