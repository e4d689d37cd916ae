"""What a pass through a chunk of layers keeps, in bytes: from shapes alone, before anything is compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpar.mesh.materialize import to_storage
from jaxpar.mesh.parameters import Tree
from jaxpar.model.decoder import Batch
from jaxpar.model.stash import on_host
from jaxpar.training.step import TrainStep


class ActivationBytes(NamedTuple):
    """Bytes of one microbatch in one chunk, on one device."""

    stash: int
    """Kept from its forward to its backward in the device's memory."""
    kept: int
    """Kept from a split backward to the weights' gradients."""
    sent: int
    """Handed to the next chunk; the gradient that comes back is as large."""
    offloaded: int
    """Kept from its forward to its backward in the host's memory."""


def chunk_bytes(step: TrainStep) -> ActivationBytes:
    """What a step's chunks keep and send; a chunk of fewer layers is padded, and keeps as much."""
    found: dict[str, int] = {}

    def measure(batch: Batch, master: Tree) -> jax.Array:
        stages = step.stages(train=True)
        weights = to_storage(master, step.placements)
        data = jax.tree.map(lambda a: a[0], batch)
        x, tokens = stages.embed(weights, data), stages.token_context(data)
        stash = jax.tree.leaves(stages.loop.stash(weights["layers"], x, tokens, 1))
        found["stash"] = _size([leaf for leaf in stash if not on_host(leaf)])
        found["offloaded"] = _size([leaf for leaf in stash if on_host(leaf)])
        split = step.schedule.splits_backward
        found["kept"] = _size(stages.loop.kept(weights["layers"], x, tokens, 1)) if split else 0
        found["sent"] = _size(x)
        return jnp.zeros(())

    mapped = step.shard_map(measure, (step.batch_layout(), step.master_layout), PartitionSpec())
    # On the device, wherever they rest: what is measured does not depend on it.
    put = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    master = jax.tree.map(put, step.abstract_state().master, step.shardings(step.master_layout))
    jax.eval_shape(mapped, step.abstract_batch(), master)
    return ActivationBytes(**found)


def _size(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
