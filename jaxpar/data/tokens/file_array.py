"""The values of a file, read when they are used."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named


class FileArray:
    """The integers in one file, as an array of one dimension that is indexed by slices and integers.

    They are read with `pread`: in a memory map, a page that a file no longer has ends the process with SIGBUS.

    Args:
        path: the file, which stays open.
        offset: where they begin, in bytes.
        count: how many there are.
        dtype: their type.

    Raises:
        OSError: the file cannot be opened.
    """

    ndim = 1

    def __init__(self, path: Path, *, offset: int, count: int, dtype: np.dtype) -> None:
        self.path, self.offset, self.dtype = path, offset, dtype
        self._count = count
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: slice | Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
        """Raises `UserError` when the file cannot be read, or has become shorter."""
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            assert step == 1, "slices are without a step"
            return self.between(first, max(first, last))
        return self.read_at(index)

    def read_at(self, places: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
        """The values at some places, each run of successive ones read at once."""
        size, descriptor, pread = self.dtype.itemsize, self._descriptor, os.pread
        bounds = [0, *(np.flatnonzero(places[1:] != places[:-1] + 1) + 1).tolist(), len(places)]
        firsts = (places[bounds[:-1]] * size + self.offset).tolist() if len(places) else []
        runs = list(zip(firsts, bounds, bounds[1:], strict=False))
        try:
            content = b"".join([pread(descriptor, (end - begin) * size, first) for first, begin, end in runs])
        except OSError:
            content = b""
        if len(content) != len(places) * size:  # Rare: once more, with what `raw` does about it.
            content = b"".join([self.raw(first, (end - begin) * size) for first, begin, end in runs])
        return np.frombuffer(content, self.dtype)

    def between(self, first: int, last: int) -> Integer[np.ndarray, " n"]:
        """The values from `first` up to, not including, `last`."""
        size = self.dtype.itemsize
        return np.frombuffer(self.raw(self.offset + first * size, (last - first) * size), self.dtype)

    def raw(self, first: int, size: int) -> bytes:
        """`size` bytes of the file from `first` on.

        Raises:
            UserError: the file cannot be read, or has become shorter.
        """
        try:
            content = os.pread(self._descriptor, size, first)
            while 0 < len(content) < size and (
                more := os.pread(self._descriptor, size - len(content), first + len(content))
            ):
                content += more
        except OSError as error:
            raise UserError(f"{named(self.path)} cannot be read any more ({error.strerror})") from error
        if len(content) < size:
            raise UserError(
                f"{named(self.path)} was truncated while it was in use: it has "
                f"{os.fstat(self._descriptor).st_size} bytes, expected at least {first + size}; copy or make it again"
            )
        return content
