"""Orbax, as far as it is used here: one folder of arrays, written in the background and read onto any sharding."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import multihost

from jaxpar.checkpoint.errors import CheckpointError
from jaxpar.checkpoint.leaves import Spec, named_leaves, nest, specs
from jaxpar.checkpoint.quiet import quieten

COMMIT_TIMEOUT_S = 1200
"""How long the processes of a job wait for each other's writes, in seconds."""


class ArrayFolder:
    """Writes and reads folders of named arrays. All calls are collective over the processes of a job."""

    def __init__(self) -> None:
        quieten()
        self._saves = 0
        self._meetings = itertools.count()
        self._orbax = ocp.AsyncCheckpointer(
            # Weights hardly compress (8% in float32), and compressing them takes longer than writing them.
            ocp.PyTreeCheckpointHandler(use_compression=False),
            async_options=ocp.options.AsyncOptions(
                timeout_secs=COMMIT_TIMEOUT_S,
                barrier_sync_fn=self._meet,
                create_directories_asynchronously=False,
            ),
        )

    def start(self, path: Path, leaves: Mapping[str, jax.Array]) -> None:
        """Copy the arrays to the host and write them to `path` in the background.

        When this returns, the device arrays may be donated.
        """
        self._saves += 1
        self._meetings = itertools.count()
        self._orbax.save(path, args=ocp.args.PyTreeSave(nest(leaves)))

    def finish(self) -> None:
        """Wait for the background write of `start`, on all processes, and raise its error. Any thread may call this."""
        self._orbax.wait_until_finished()

    def specs(self, path: Path) -> dict[str, Spec]:
        """Shapes and dtypes of the arrays in `path`, by name, without reading them.

        Raises:
            CheckpointError: it holds none.
        """
        metadata = self._orbax.metadata(path).item_metadata
        if metadata is None:
            raise CheckpointError(f"{path} holds no arrays that Orbax can read")
        return specs(named_leaves(metadata.tree))

    def read(self, path: Path, like: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Read the arrays named in `like`, each with its shape, dtype and sharding there; others stay on disk."""
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
        self._orbax.close()

    def _meet(self, *, key: str, timeout_ms: int) -> None:
        """Orbax's barrier of background threads, under a key that no other save has."""
        barrier = multihost.get_barrier_sync_fn()
        barrier(key=f"{key}_{self._saves}_{next(self._meetings)}", timeout_ms=timeout_ms)
