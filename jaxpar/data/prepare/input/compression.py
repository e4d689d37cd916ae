"""Reading files that may be compressed; truncated files are detected."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Buffer, Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from jaxpar.config.errors import UserError
from jaxpar.config.install import install_command
from jaxpar.data.prepare.input.files import Input

type Progress = Callable[[int], None]
"""Called with the bytes of a compressed file that were read, about a MiB at a time."""

_READ_BYTES = 2**20
_LARGEST_WINDOW = 2**31
_PACKED_BYTES = 2**11
"""Compressed bytes that zstd unpacks at once: to at most 64 MiB, as four bytes may be 128 KiB."""
UNLIMITED_BYTES = 2**26
"""A file that unpacks to no more than this is read, whatever its size."""


@contextmanager
def reading(file: Input) -> Iterator[None]:
    """Errors while `file` is read become a `UserError` that names it."""
    try:
        yield
    except EOFError:
        raise UserError(f"{file.path} is cut off: its compressed data ends too early; copy it again") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{file.path} cannot be read ({reason})") from error
    except zlib.error as error:
        raise UserError(f"{file.path} cannot be read: its compressed data is damaged ({error})") from error


@contextmanager
def open_bytes(file: Input, max_expansion: int | None = None, progress: Progress | None = None) -> Iterator[BinaryIO]:
    """The file's contents, decompressed. Raises errors that `reading` handles.

    Args:
        file: the file.
        max_expansion: how many times its size a compressed file may unpack to, if that is more than `UNLIMITED_BYTES`;
            reading beyond that is a `UserError`. None sets no limit.
        progress: hears how far a compressed file was read.
    """
    if file.compression is None:
        with open(file.path, "rb", buffering=_READ_BYTES) as raw:
            yield raw
        return
    counted = _Counted(file.path, progress or (lambda _: None))
    with (
        io.BufferedReader(counted, _READ_BYTES) as raw,
        gzip.GzipFile(fileobj=raw) if file.compression == "gzip" else _ZstdFile(raw) as content,
    ):
        limit = None if max_expansion is None else max(UNLIMITED_BYTES, file.bytes * max_expansion)
        yield io.BufferedReader(_Limited(content, file, limit), _READ_BYTES)


class _Counted(io.FileIO):
    """A file that reports what is read of it."""

    def __init__(self, path: str, progress: Progress) -> None:
        super().__init__(path)
        self._progress = progress

    def readinto(self, buffer: Buffer, /) -> int:
        count = super().readinto(buffer) or 0
        self._progress(count)
        return count


class _Limited(io.RawIOBase):
    """The unpacked content of a compressed file, up to a limit in bytes."""

    def __init__(self, content: io.BufferedIOBase | io.RawIOBase, file: Input, limit: int | None) -> None:
        self._content, self._file, self._limit = content, file, limit
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        count = self._content.readinto(buffer) or 0
        self._read += count
        if self._limit is not None and self._read > self._limit:
            raise UserError(
                f"{self._file.path} has {self._file.bytes} bytes and unpacks to more than {self._limit}, which is "
                "beyond --max-expansion; expected text, which seldom unpacks to 20 times as much: look at it, and "
                "give a higher --max-expansion if it is what it should be"
            )
        return count


class _ZstdFile(io.RawIOBase):
    """Decompresses frame after frame. The library's own reader ends without an error where a file was cut off."""

    def __init__(self, raw: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise UserError(
                f"{raw.name} needs the package zstandard, which is not installed: {install_command('data')}"
            ) from None
        self._raw = raw
        self._library = zstandard
        self._frame: Any = None
        self._compressed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._ready and self._advance():
            pass
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _advance(self) -> bool:
        """Decompress some more; returns whether there was any."""
        if not self._compressed:
            self._compressed = self._raw.read(_PACKED_BYTES)
        if not self._compressed:
            if self._frame is not None:
                raise EOFError
            return False
        if self._frame is None:
            self._frame = self._library.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(self._compressed))
        except self._library.ZstdError as error:
            raise UserError(f"{self._raw.name} cannot be read: its compressed data is damaged ({error})") from error
        self._compressed = b""
        if self._frame.eof:
            self._compressed, self._frame = self._frame.unused_data, None
        return True
