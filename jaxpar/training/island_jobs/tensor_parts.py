"""Parts of named arrays in `safetensors` files: each process writes those that it has, and any process reads a region.

The name of a tensor is that of its array, `@`, and the range of the part along each dim:
`layers/all/mlp/up@0:4.64:128`. Outer gradients may be stored as the bytes in which they travel (`islands.wire`):
[rows, bytes], a row of the first dim each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxpar.checkpoint.errors import Damage
from jaxpar.optim.outer import decode_message, encode_message

_AT = "@"


class Part(NamedTuple):
    """A part of an array: a rectangle of it."""

    name: str
    starts: tuple[int, ...]
    """First index along each dim."""
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Part:
        """The part that `str` spells. Raises `ValueError` for another text."""
        name, _, ranges = text.rpartition(_AT)
        pairs = [tuple(map(int, one.split(":"))) for one in ranges.split(".")] if ranges else []
        return cls(name, tuple(start for start, _ in pairs), tuple(stop - start for start, stop in pairs))

    def __str__(self) -> str:
        ranges = (f"{start}:{stop}" for start, stop in zip(self.starts, self.stops, strict=True))
        return f"{self.name}{_AT}{'.'.join(ranges)}"

    def overlap(self, other: Part) -> Part | None:
        """The elements of both, as a part of the same array; None where there are none."""
        stops = [min(a, b) for a, b in zip(self.stops, other.stops, strict=True)]
        starts = tuple(max(a, b) for a, b in zip(self.starts, other.starts, strict=True))
        shape = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
        return None if self.name != other.name or min(shape, default=1) <= 0 else Part(self.name, starts, shape)

    @property
    def stops(self) -> tuple[int, ...]:
        """The index after the last along each dim."""
        return tuple(start + size for start, size in zip(self.starts, self.shape, strict=True))

    def within(self, outer: Part) -> tuple[slice, ...]:
        """The slices of `outer` that are this part."""
        firsts = [start - first for start, first in zip(self.starts, outer.starts, strict=True)]
        return tuple(slice(first, first + size) for first, size in zip(firsts, self.shape, strict=True))


def write_parts(path: Path, parts: Mapping[Part, np.ndarray], message_dtype: str | None = None) -> None:
    """Write float32 parts to a file, as bytes of `message_dtype` where it is not None. Raises `OSError`."""
    stored = {str(part): np.asarray(_sent(array, message_dtype), order="C") for part, array in parts.items()}
    try:
        save_file(stored, path)
    except SafetensorError as error:
        raise OSError(None, str(error), str(path)) from error


def _sent(array: np.ndarray, message_dtype: str | None) -> np.ndarray:
    if message_dtype is None:
        return array
    return np.asarray(encode_message(array.reshape(_rows(array.shape), -1), message_dtype))


def _rows(shape: tuple[int, ...]) -> int:
    """Rows of an array that is sent: its first dim, or one where that is all it has."""
    return shape[0] if len(shape) > 1 else 1


class TensorParts:
    """The parts in some files, which are opened here and read later.

    Args:
        files: of `write_parts`; together they have each array once.
        wire: as it was written.
    """

    def __init__(self, files: Iterable[Path], message_dtype: str | None = None) -> None:
        self._message_dtype = message_dtype
        self._parts: dict[str, list[tuple[Part, Any]]] = {}
        for path in files:
            with _damaged():
                file = safe_open(path, framework="numpy")
                for part in map(Part.parse, file.keys()):
                    self._parts.setdefault(part.name, []).append((part, file))

    def read(self, wanted: Part) -> np.ndarray:
        """The numbers of a part, in float32. Raises `Damage` where the files do not have each of them once."""
        array, missing = np.empty(wanted.shape, np.float32), prod(wanted.shape)
        for part, file in self._parts.get(wanted.name, ()):
            if len(part.shape) == len(wanted.shape) and (both := part.overlap(wanted)) is not None:
                with _damaged():
                    array[both.within(wanted)] = self._stored(file, part, both.within(part))
                missing -= prod(both.shape)
        if missing:
            raise Damage(f"it does not have each number of {wanted.name} once")
        return array

    def _stored(self, file: Any, part: Part, within: tuple[slice, ...]) -> np.ndarray:
        if self._message_dtype is None:
            return file.get_slice(str(part))[within] if within else file.get_tensor(str(part))
        rows = _rows(part.shape)
        decoded = decode_message(file.get_tensor(str(part)), prod(part.shape) // rows, self._message_dtype)
        return np.asarray(decoded).reshape(part.shape)[within]


@contextmanager
def _damaged() -> Iterator[None]:
    """A file that is missing, or not what was written, raises `Damage`."""
    try:
        yield
    except (SafetensorError, FileNotFoundError, ValueError) as error:
        raise Damage(f"a file of it is missing or no safetensors file ({error})") from error
