"""Trained weights between the devices of a run and the host, in the form that islands exchange.

Layers are in the order of the model and numbers in float32, so that islands with other meshes and pipelines read them.
Each process has the parts that its devices have, and saves those of which no other device has an earlier copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from jax.tree_util import KeyPath

from jaxpar.checkpoint.leaves import named_leaves
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.parameters import Weights
from jaxpar.training.island_jobs.tensor_parts import Part
from jaxpar.training.residency.saved_state import SavedState

type Parts = dict[Part, np.ndarray]
"""Float32 numbers of parts."""


class LocalWeights:
    """Copies the trained weights of a run.

    Args:
        layout: of the run.
        mesh: its mesh.
    """

    def __init__(self, layout: StepLayout, mesh: jax.sharding.Mesh) -> None:
        self._saved = SavedState(layout.abstract_state(mesh).master, layout.order)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The full shape of each array."""
        return {name: tuple(leaf.shape) for name, leaf in named_leaves(self._saved.abstract).items()}

    def parts(self, master: Weights) -> tuple[Parts, frozenset[Part]]:
        """The parts of this process, and which of them it saves."""
        parts: Parts = {}
        saves: set[Part] = set()
        for name, leaf in named_leaves(self._saved.outgoing(master)).items():
            for shard in leaf.addressable_shards:
                part = _part(name, shard.index, leaf.shape)
                if part not in parts:
                    parts[part] = np.array(shard.data, np.float32)  # a copy: steps reuse the memory
                if shard.replica_id == 0:
                    saves.add(part)
        return parts, frozenset(saves)

    def placed(self, parts: Mapping[Part, np.ndarray], old: Weights) -> Weights:
        """The weights with these parts, on the devices. `old` is used up: its memory is freed before."""
        for leaf in jax.tree.leaves(old):
            leaf.delete()

        def one(path: KeyPath, like: jax.ShapeDtypeStruct) -> jax.Array:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            read = lambda index: parts[_part(name, index, like.shape)].astype(like.dtype)
            assert like.sharding is not None, "weights are sharded over a mesh"
            return jax.make_array_from_callback(like.shape, like.sharding, read)

        return self._saved.incoming(jax.tree_util.tree_map_with_path(one, self._saved.abstract))


def _part(name: str, index: tuple[slice, ...], shape: tuple[int, ...]) -> Part:
    ranges = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    return Part(name, tuple(r[0] for r in ranges), tuple(r[1] - r[0] for r in ranges))
