"""Digests of files: one for a whole file, or a short one for each block, so that blocks can be checked separately."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import UInt8

DIGEST_BYTES = 32
BLOCK_BYTES = 2**18
"""Size of a block, which is read and compared at once: a quarter of a MiB takes a quarter of a millisecond."""
SUM_BYTES = 16

_READ_BYTES = 2**20


def digest(content: bytes) -> str:
    """BLAKE2b-256 of some bytes, in hex."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def file_digest(path: Path) -> str:
    """BLAKE2b-256 of a file, in hex. Raises `OSError`."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def block_sum(block: bytes | bytearray | memoryview | np.ndarray) -> bytes:
    """BLAKE2b-128 of a block of at most `BLOCK_BYTES`."""
    return hashlib.blake2b(block, digest_size=SUM_BYTES).digest()


def blocks_in(size: int) -> int:
    """Blocks of a file of `size` bytes; the last one may be short."""
    return -(-size // BLOCK_BYTES)


def parse_sums(raw: bytes) -> UInt8[np.ndarray, "blocks sum_bytes"]:
    """The sums of a file's blocks, one after the other, as rows."""
    return np.frombuffer(raw, np.uint8).reshape(-1, SUM_BYTES)


class SummingFile:
    """Writes a file and keeps the sum of each of its blocks."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sums: list[bytes] = []
        self._pending = bytearray()

    def write(self, content: bytes) -> None:
        """Append `content`. Raises `OSError`."""
        self._file.write(content)
        self._pending += content
        complete = len(self._pending) // BLOCK_BYTES * BLOCK_BYTES
        with memoryview(self._pending) as pending:
            for first in range(0, complete, BLOCK_BYTES):
                self._sums.append(block_sum(pending[first : first + BLOCK_BYTES]))
        del self._pending[:complete]

    def sums(self) -> bytes:
        """The sums of all blocks, one after the other; nothing may be written afterwards."""
        return b"".join([*self._sums, block_sum(self._pending)] if self._pending else self._sums)
