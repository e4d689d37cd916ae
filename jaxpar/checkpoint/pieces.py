"""Arrays that need not fit in memory: written and read a piece at a time, by TensorStore.

Orbax copies all arrays of a save to the host before it writes the first, and restores full arrays. An array of pieces
has a folder next to Orbax's, in zarr, the format that Orbax uses too, with one file per piece. An array saved in either
way can be restored in either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import PyTree

from jaxpar.checkpoint.leaves import SEPARATOR, Spec

if TYPE_CHECKING:
    import tensorstore

type Region = tuple[slice, ...]
"""A part of an array: a slice along each dim."""

FOLDER = "pieces"
"""Name of the folder of pieces, next to Orbax's."""
WRITES = 2
"""Pieces that may be written to disk at the same time."""


class Pieces(ABC):
    """An array of a state that is saved, and restored, a piece at a time."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    @abstractmethod
    def piece_shape(self) -> tuple[int, ...]:
        """Shape of a saved piece; the last piece of a dim may be smaller. Each piece begins at a multiple of it."""

    @abstractmethod
    def pieces(self) -> Iterator[tuple[Region, np.ndarray]]:
        """The pieces that this process saves: no element is in the pieces of two processes."""

    @abstractmethod
    def restored(self, read: Callable[[Region], np.ndarray], rows: int) -> object:
        """Restore the array with `read`. A read of `rows` rows of the first dim, or a divisor of it, is fastest."""


def write_pieces(folder: Path, leaves: Mapping[str, Pieces]) -> list[str]:
    """Write arrays to `folder`. Every process writes its own pieces; all of them are written when this returns.

    Returns:
        Names of the files of pieces that this process wrote, relative to `folder`.
    """
    pending: deque[tensorstore.WriteFutures] = deque()
    written: list[str] = []
    for name, leaf in leaves.items():
        store = _created(_spec(folder, name), leaf)
        for region, piece in leaf.pieces():
            pending.append(store[region].write(piece))
            numbers = [part.start // size for part, size in zip(region, leaf.piece_shape, strict=True)]
            written.append(f"{name}/{'.'.join(map(str, numbers)) or '0'}")
            while len(pending) >= WRITES:
                pending.popleft().result()
    for write in pending:
        write.result()
    return written


def piece_specs(folder: Path) -> dict[str, Spec]:
    """Shapes and dtypes of the arrays in `folder`, by name; empty where there is no such folder."""
    names = [path.parent.relative_to(folder).as_posix() for path in folder.rglob(".zarray")]
    stores = {name: _opened(_spec(folder, name)) for name in names}
    return {name: Spec(tuple(store.shape), store.dtype.numpy_dtype) for name, store in stores.items()}


def read_saved(folder: Path, name: str, like: jax.ShapeDtypeStruct | Pieces, *, from_orbax: bool) -> PyTree[jax.Array]:
    """Read one array: `Pieces` restore themselves, anything else becomes a `jax.Array` with the sharding of `like`.

    Args:
        folder: the folder of pieces, or Orbax's.
        name: of the array.
        like: shape, dtype and sharding of the result, or the object that restores itself.
        from_orbax: whether `folder` is Orbax's.
    """
    store = _opened(_spec_of_orbax(folder, name) if from_orbax else _spec(folder, name))
    read = lambda region: store[region].read().result()
    if isinstance(like, Pieces):
        return like.restored(read, (store.chunk_layout.read_chunk.shape or (1,))[0] or 1)
    return jax.make_array_from_callback(tuple(like.shape), like.sharding, read)


def open_saved(checkpoint: Path, name: str, orbax: str) -> tensorstore.TensorStore:
    """Open an array of a checkpoint; `[region].read().result()` reads a part of it.

    Args:
        checkpoint: its folder.
        name: of the array.
        orbax: name of Orbax's folder in it.

    Raises:
        ValueError: it has no such array.
    """
    pieces = checkpoint / FOLDER
    return _opened(_spec(pieces, name) if (pieces / name).exists() else _spec_of_orbax(checkpoint / orbax, name))


def _spec(folder: Path, name: str) -> dict[str, object]:
    return {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder / name}/"}}


def _spec_of_orbax(folder: Path, name: str) -> dict[str, object]:
    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}}
    return {"driver": "zarr", "kvstore": store | {"path": f"{name.replace(SEPARATOR, '.')}/"}}


def _created(spec: dict[str, object], leaf: Pieces) -> tensorstore.TensorStore:
    """A store for `leaf`; the first process that calls this creates it."""
    metadata = {"shape": leaf.shape, "chunks": leaf.piece_shape, "compressor": None}
    # A piece of zeros is a file like any other: a missing piece is an error, not zeros.
    strict = {"store_data_equal_to_fill_value": True, "fill_missing_data_reads": False}
    wanted = spec | {"metadata": metadata, "dtype": np.dtype(leaf.dtype).name} | strict
    assert prod(leaf.piece_shape), f"a piece of no elements: {leaf.piece_shape}"
    import tensorstore

    return tensorstore.open(wanted, create=True, open=True).result()


def _opened(spec: dict[str, object]) -> tensorstore.TensorStore:
    import tensorstore

    return tensorstore.open(spec | {"fill_missing_data_reads": False}, open=True, read=True).result()
