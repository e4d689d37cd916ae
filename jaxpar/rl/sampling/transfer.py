"""Weights of a training step on the mesh and in the layout of a model that draws or scores answers."""

from __future__ import annotations

from functools import partial
from math import prod

import jax
from jax.sharding import Mesh, NamedSharding
from jax.tree_util import KeyPath
from jaxtyping import PyTree

from jaxpar.config import Config
from jaxpar.generation.layout import generation_layout
from jaxpar.layout.step_layout import shardings
from jaxpar.mesh.parameters import Weights
from jaxpar.training.run.run import Run


class WeightTransfer:
    """Moves the weights of a run to a mesh in the storage placement of `generation_layout`, an array at a time.

    They are cast where they are, and each device of the mesh gets its part of an array once; an array whose parts are
    others there goes over the host, which has room for one. Frozen weights are moved to other devices with the first
    call alone.

    Args:
        run: whose weights they are.
        config: of the model on `mesh`, with its axes filled in.
        mesh: its devices may be those of the run, or others.
    """

    def __init__(self, run: Run, config: Config, mesh: Mesh):
        self._run = run
        placement = generation_layout(config, mesh).placements.storage
        self._dtype, self._placed = placement.dtype, shardings(mesh, placement.layout)
        self._apart = set(mesh.devices.flat).isdisjoint(run.mesh.devices.flat)
        """Whether what was moved has memory of its own; on a device of the run the step may donate it."""
        self._frozen: dict[KeyPath, jax.Array] = {}
        """Frozen weights by their path, where they were moved to other devices."""
        self.moved_bytes = 0
        """Bytes that the devices of the mesh got in the last call."""

    def __call__(self, weights: Weights) -> Weights:
        """All weights of the run, or others like them."""
        self.moved_bytes = 0
        frozen = {path for path, _ in jax.tree_util.tree_leaves_with_path(self._run.state.frozen)}
        return jax.tree_util.tree_map_with_path(partial(self._moved, frozen), weights, self._placed)

    def _moved(self, frozen: set[KeyPath], path: KeyPath, leaf: jax.Array, where: NamedSharding) -> jax.Array:
        if path in self._frozen:
            return self._frozen[path]
        there = jax.device_put(self._to_generation(path, leaf), where)
        self.moved_bytes += there.dtype.itemsize * prod(where.shard_shape(there.shape)) * where.mesh.size
        if self._apart and path in frozen:
            self._frozen[path] = there
        return there

    def _to_generation(self, path: KeyPath, leaf: jax.Array) -> jax.Array:
        """A weight in the dtype of generation, the layers of a stack in the order of the model."""
        source = leaf.sharding
        assert isinstance(source, NamedSharding), "weights are on a mesh"
        on_device = jax.device_put(leaf, NamedSharding(source.mesh, source.spec))
        cast = on_device.astype(self._dtype)
        tree: PyTree = cast
        for key in reversed(path):
            tree = {key.key: tree}
        (moved,) = jax.tree.leaves(self._run.saved.outgoing(tree))
        return moved
