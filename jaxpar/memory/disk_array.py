"""Arrays over a mesh whose parts are stored in files: each process has those of its own devices.

The files are scratch. Their disk space is allocated at the start, and they are unlinked as soon as they are open: they
are freed however the process ends, and no later process can mistake them for its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from uuid import uuid4

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import PyTree

from jaxpar.config.errors import UserError
from jaxpar.config.schema import Config
from jaxpar.distributed.devices import Device
from jaxpar.hardware.host import PINNED
from jaxpar.pages.units import size

SCRATCH = ".offloaded-state-"
"""Prefix of a file's name, until it is unlinked."""
STALE_S = 3600.0
"""Age from which a file that still has its name is of a process that was killed."""

type _Extent = tuple[tuple[int, int], ...]
"""A part of the global array: first and last index along each dim."""

type Region = tuple[slice, ...]
"""The same as slices."""

type Parts = list[tuple[Device, np.ndarray]]
"""Devices, and rows of the part of each, on the host."""


class DiskArray:
    """An array of which this process's parts are in files in `folder`.

    Args:
        folder: where the files are made.
        like: shape, dtype and sharding.

    Raises:
        UserError: the disk has no room, or the folder cannot be written to.
    """

    def __init__(self, folder: Path, like: jax.ShapeDtypeStruct):
        assert isinstance(like.sharding, NamedSharding), "a state is sharded over the mesh"
        self.folder, self.shape, self.dtype = folder, like.shape, np.dtype(like.dtype)
        self.sharding = NamedSharding(like.sharding.mesh, like.sharding.spec)
        self.local_shape = self.sharding.shard_shape(self.shape)
        self.on_device: jax.Array | None = None
        """The copy in another dtype that the next step reads; None where it reads nothing."""
        self.halfway = False
        """Whether an update of the state that it belongs to has begun and not ended."""
        self._extents = {
            device: _extent(index, self.shape)
            for device, index in self.sharding.addressable_devices_indices_map(self.shape).items()
        }
        self._parts = {extent: _scratch(folder, self.local_shape, self.dtype) for extent in set(self._extents.values())}

    def read(self, first: int, rows: int | None) -> Parts:
        """Some rows of every part, or all from `first` on."""
        last = None if rows is None else first + rows
        read = {extent: np.array(part[first:last]) for extent, part in self._parts.items()}
        return [(device, read[extent]) for device, extent in self._extents.items()]

    def placed(self, parts: Parts) -> jax.Array:
        """The result of `read`, on the devices."""
        rows = parts[0][1].shape[0] * (self.shape[0] // self.local_shape[0])
        arrays = [jax.device_put(part, device) for device, part in parts]
        return jax.make_array_from_single_device_arrays((rows, *self.shape[1:]), self.sharding, arrays)

    def write(self, first: int, piece: jax.Array) -> None:
        """Write back rows that are on the devices as `placed` returns them, or in host memory likewise."""
        written = set()
        for shard in piece.addressable_shards:
            extent = self._extents[shard.device]
            if extent not in written:
                written.add(extent)
                rows = np.asarray(shard.data)
                self._parts[extent][first : first + rows.shape[0]] = rows

    def parts(self) -> Iterator[tuple[Region, np.ndarray]]:
        """Each part of this process, in its file, and its index in the array."""
        for extent, part in self._parts.items():
            yield _region(extent), part

    def local_parts(self) -> Iterator[tuple[Region, np.ndarray]]:
        """The parts among `parts` that this process saves: replicas are saved by one process only."""
        owners: dict[_Extent, Device] = {}
        for device, index in self.sharding.devices_indices_map(self.shape).items():
            extent = _extent(index, self.shape)
            owners[extent] = min(device, owners.get(extent, device), key=lambda device: device.id)
        for extent, part in self._parts.items():
            if owners[extent].process_index == jax.process_index():
                yield _region(extent), part

    def copied(self) -> DiskArray:
        """A copy in new files."""
        copy = DiskArray(self.folder, jax.ShapeDtypeStruct(self.shape, self.dtype, sharding=self.sharding))
        for extent, part in self._parts.items():
            np.copyto(copy._parts[extent], part)
        return copy

    def to_pinned_host(self) -> jax.Array:
        """A copy in pinned host memory."""
        pinned = self.sharding.with_memory_kind(PINNED)
        copy = lambda index: np.array(self._parts[_extent(index, self.shape)])
        return jax.make_array_from_callback(self.shape, pinned, copy)


def copied(weight: jax.Array | DiskArray) -> jax.Array | DiskArray:
    """A copy in the same memory; it is made on the device, or from files to files."""
    if isinstance(weight, DiskArray):
        return weight.copied()
    assert isinstance(weight.sharding, NamedSharding), "a state is on the mesh"
    on_device = jax.device_put(weight, NamedSharding(weight.sharding.mesh, weight.sharding.spec))
    return jax.device_put(jnp.copy(on_device), weight.sharding)


def offload_folder(config: Config) -> Path:
    """The folder of the files of a run's state."""
    run, chosen = config.run, config.memory.offload_dir
    return Path(chosen).expanduser() if chosen is not None else Path(run.dir).expanduser() / run.name


def check_complete(state: PyTree) -> None:
    """Raises `UserError` if an update was interrupted: it is then in some of the files and not in others."""
    leaves = jax.tree.leaves(state)
    if any(leaf.halfway for leaf in leaves if isinstance(leaf, DiskArray)):
        raise UserError(
            "memory.optimizer_offload: file, and the update of a step was interrupted, so that a part of the state has "
            "it and the rest does not; create a new Trainer, and restore the last checkpoint"
        )


def load_disk_arrays(tree: PyTree) -> PyTree[jax.Array]:
    """`tree` with its disk arrays in pinned host memory."""
    return jax.tree.map(lambda leaf: leaf.to_pinned_host() if isinstance(leaf, DiskArray) else leaf, tree)


def _extent(index: Any, shape: tuple[int, ...]) -> _Extent:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _region(extent: _Extent) -> Region:
    return tuple(slice(*bounds) for bounds in extent)


def remove_stale(folder: Path) -> None:
    """Remove files that a process left in `folder` when it was killed between making and unlinking one.

    A file has its name for a moment only, so an old one belongs to no process that is alive. Its age is by the clock of
    the file system, which may be that of another machine. Raises `UserError` if the folder cannot be written to.
    """
    with _reported(folder, 0):
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix=SCRATCH) as made_now:
            now = os.fstat(made_now.fileno()).st_mtime
        for path in folder.glob(f"{SCRATCH}*"):
            with suppress(FileNotFoundError):  # Another process of the job may be faster.
                if now - path.stat().st_mtime > STALE_S:
                    path.unlink()


def _scratch(folder: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory-maps an unlinked file for an array."""
    wanted = int(np.prod(shape)) * dtype.itemsize
    with _reported(folder, wanted):
        folder.mkdir(parents=True, exist_ok=True)
        # Process ids repeat across the containers that share a folder.
        path = folder / f"{SCRATCH}{uuid4().hex}"
        with path.open("x+b") as file:
            path.unlink()
            os.posix_fallocate(file.fileno(), 0, wanted)
            return np.memmap(file, np.uint8, "r+", shape=(wanted,)).view(dtype).reshape(shape)


@contextmanager
def _reported(folder: Path, wanted: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"memory.offload_dir: {folder} cannot take {size(wanted)} more of master weights and moments "
            f"({error.strerror}); expected a folder on a disk with room for all of them"
        ) from error
