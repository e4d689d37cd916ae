"""Folders of arrays, read onto any sharding: Orbax's, written in the background, and arrays of pieces next to it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from jaxpar.checkpoint.errors import CheckpointError
from jaxpar.checkpoint.leaves import Spec, named_leaves, nest, specs
from jaxpar.checkpoint.pieces import FOLDER, Pieces, piece_specs, read_saved, write_pieces
from jaxpar.checkpoint.quiet import quieten

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

PROCESS_PREFIX = "ocdbt.process_"
"""Orbax's folder of the data that one process wrote: this, and the number of the process."""
COMMIT_TIMEOUT_S = 1200
"""Seconds that the processes of a job wait for each other's writes."""


class ArrayFolder:
    """Writes and reads folders of named arrays. All calls are collective over the processes of a job.

    Orbax, which takes half a second to import, is imported when the first folder is written or read.
    """

    def __init__(self) -> None:
        self._saves = 0
        self._pieces: list[str] = []
        self._meetings = itertools.count()

    @cached_property
    def _orbax(self) -> ocp.AsyncCheckpointer:
        import orbax.checkpoint as ocp

        quieten()
        return ocp.AsyncCheckpointer(
            # Weights hardly compress (8% in float32), and compressing them takes longer than writing them.
            ocp.PyTreeCheckpointHandler(use_compression=False),
            async_options=ocp.options.AsyncOptions(
                timeout_secs=COMMIT_TIMEOUT_S,
                barrier_sync_fn=self._barrier,
                create_directories_asynchronously=False,
            ),
        )

    def start(self, path: Path, leaves: Mapping[str, jax.Array | Pieces]) -> None:
        """Write arrays of pieces, copy the others to the host, and write these to `path` in the background.

        When this returns, the device arrays may be donated and the pieces changed.
        """
        self._saves += 1
        self._meetings = itertools.count()
        pieces = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Pieces)}
        # Before Orbax's save: the processes synchronize in it, so all pieces are there when it is over.
        self._pieces = write_pieces(path.parent / FOLDER, pieces)
        unsplit = {name: leaf for name, leaf in leaves.items() if name not in pieces}
        import orbax.checkpoint as ocp

        self._orbax.save(path, args=ocp.args.PyTreeSave(nest(unsplit)))

    def finish(self) -> None:
        """Wait for the background write of `start`, on all processes, and raise its error. Any thread may call this."""
        if "_orbax" in vars(self):
            self._orbax.wait_until_finished()

    def written(self, path: Path) -> list[str]:
        """Names of the large files that this process wrote in the last save, relative to the folder of `path`.

        Orbax's process 0 also writes others, which are small.
        """
        local_files = (path / f"{PROCESS_PREFIX}{jax.process_index()}").rglob("*")
        arrays = [file.relative_to(path.parent).as_posix() for file in local_files if file.is_file()]
        return [*arrays, *(f"{FOLDER}/{name}" for name in self._pieces)]

    def specs(self, path: Path) -> dict[str, Spec]:
        """Shapes and dtypes of the arrays in `path`, by name, without reading them.

        Raises:
            CheckpointError: it holds none.
        """
        metadata = self._orbax.metadata(path).item_metadata
        if metadata is None:
            raise CheckpointError(f"{path} holds no arrays that Orbax can read")
        return specs(named_leaves(metadata.tree)) | piece_specs(path.parent / FOLDER)

    def read(self, path: Path, like: Mapping[str, jax.ShapeDtypeStruct | Pieces]) -> dict[str, jax.Array]:
        """Read the arrays named in `like`, each with its shape, dtype and sharding there; others stay on disk.

        `Pieces` there are read one after the other, a piece at a time.
        """
        beside = path.parent / FOLDER
        in_pieces = piece_specs(beside)
        read: dict[str, jax.Array] = {}
        others: dict[str, jax.ShapeDtypeStruct] = {}
        for name, leaf in like.items():
            if name in in_pieces or isinstance(leaf, Pieces):
                from_orbax = name not in in_pieces
                read[name] = read_saved(path if from_orbax else beside, name, leaf, from_orbax=from_orbax)
            else:
                others[name] = leaf
        return read | (self._read_orbax(path, others) if others else {})

    def _read_orbax(self, path: Path, like: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        import orbax.checkpoint as ocp

        restore = {
            name: ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=tuple(leaf.shape), dtype=leaf.dtype)
            for name, leaf in like.items()
        }
        tree = self._orbax.restore(
            path, args=ocp.args.PyTreeRestore(item=nest(like), restore_args=nest(restore), partial_restore=True)
        )
        return named_leaves(tree)

    def close(self) -> None:
        """Release Orbax's threads."""
        if "_orbax" in vars(self):
            self._orbax.close()

    def _barrier(self, *, key: str, timeout_ms: int) -> None:
        """Orbax's barrier of background threads, under a key that no other save has."""
        from orbax.checkpoint import multihost

        barrier = multihost.get_barrier_sync_fn()
        barrier(key=f"{key}_{self._saves}_{next(self._meetings)}", timeout_ms=timeout_ms)
