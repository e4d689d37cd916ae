"""What a step takes of a device's memory, by class, from shapes alone: before anything is compiled or allocated."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxpar.config.counting import padded_vocab
from jaxpar.memory.layer_shape import activation_bytes, layer_shape
from jaxpar.memory.streaming import PIECE_BYTES
from jaxpar.mesh.parameters import Tree, map_specs
from jaxpar.mesh.placements import Placement, local_shape
from jaxpar.training.activation_memory import chunk_bytes
from jaxpar.training.memory_check import pinned_state_bytes, state_bytes
from jaxpar.training.step import TrainStep


class MemoryEstimate(NamedTuple):
    """Bytes on one device, in the classes of `jaxpar.inspect`; `host` comes on top."""

    optimizer: int
    """Master weights and moments."""
    weights: int
    """Storage weights made from the master weights, and what is gathered of them."""
    gradients: int
    """Accumulated, and whole layers' on their way there."""
    saved_activations: int
    """Kept from forward to backward, over all microbatches in flight."""
    temporaries: int
    """A layer's backward or the loss, whichever is larger, and the batch."""
    host: int
    """Pinned memory of the host."""

    @property
    def device(self) -> int:
        """All that is on the device."""
        return sum(self) - self.host


def estimate_memory(step: TrainStep) -> MemoryEstimate:
    """What `step` takes, within about 10% of what XLA allocates for GPUs. Takes the tracing of one layer.

    A sum over what lives at the same time: state, storage weights, accumulated gradients and the stash, with a layer in
    its backward or the head in the loss. What XLA fuses or orders otherwise is not known here.
    """
    resting, host = state_sizes(step)
    chunk, slots = chunk_bytes(step), step.program.slots
    buffers = chunk.sent * sum(slots[name] for name in ("arrivals", "cotangents", "outputs"))
    saved = slots["stash"] * chunk.stash + slots["kept"] * chunk.kept
    in_layer, in_head = _layer(step), _head(step)
    work = max(in_layer, in_head, key=sum)
    storage = _storage(step)
    return MemoryEstimate(
        optimizer=resting,
        weights=storage + work.weights + _held(step, "weights"),
        gradients=_bytes(step, step.placements.gradient) + work.gradients + _held(step, "gradients"),
        saved_activations=saved,
        temporaries=buffers + work.temporaries + _batch(step),
        host=host + slots["stash"] * chunk.offloaded,
    )


def estimated_bytes(step: TrainStep) -> int:
    """Bytes that `step` takes on a device."""
    return estimate_memory(step).device


def fixed_bytes(step: TrainStep) -> int:
    """Bytes that `step` takes on a device whatever its layers keep from forward to backward."""
    estimate = estimate_memory(step)
    return estimate.device - estimate.saved_activations


def state_sizes(step: TrainStep) -> tuple[int, int]:
    """Bytes of master weights and moments on one device, and for one device in pinned memory of the host."""
    host = pinned_state_bytes(step)
    # A piece that comes, one that is worked on and one that goes back.
    return state_bytes(step) - host + min(host, 3 * PIECE_BYTES), host


class _Work(NamedTuple):
    """Bytes that live while a part of the model is differentiated."""

    weights: int
    gradients: int
    temporaries: int


def _layer(step: TrainStep) -> _Work:
    """A layer's backward: its weights, the gradients of its widest matrix, activations made again, and cotangents."""
    config, axes = step.config, step.plan.axes
    gathers = step.placements.compute.layout["layers"] != step.placements.storage.layout["layers"]
    each = _each(step, step.placements.compute, "layers")
    rows = step.order.rows // axes.pipe
    layer = sum(each) // rows
    made = activation_bytes(layer_shape(config, axes, step.plan.microbatch_rows))
    again = min(sum(size for name, size in made.items() if run.activations[name] == "save") for run in step.plan.runs)
    width = jnp.dtype(step.placements.gradient.dtype).itemsize / jnp.dtype(step.placements.compute.dtype).itemsize
    return _Work(
        weights=(2 if gathers else 1) * layer,
        gradients=int(layer * width) if gathers else 0,
        temporaries=2 * sum(made.values()) - again,
    )


def _head(step: TrainStep) -> _Work:
    """The loss: the gathered head, its whole gradient (with what it adds up to on the way to the shards), and a tile's
    logits in float32 with their gradient."""
    config, plan = step.config, step.plan
    part = "embedding" if config.model.tied else "head"
    weights = sum(_each(step, step.placements.compute, part))
    width = jnp.dtype(step.placements.gradient.dtype).itemsize / jnp.dtype(step.placements.compute.dtype).itemsize
    gathers = step.placements.compute.layout[part] != step.placements.storage.layout[part]
    ranks = plan.axes.tensor * (plan.axes.pipe if plan.pipe_ends == "shared" else 1)
    tokens = plan.microbatch_rows * config.data.sequence_length // plan.axes.context // plan.loss_tiles
    logits = 4 * tokens * padded_vocab(config.model) // ranks
    return _Work(weights * gathers, int(weights * width) * (1 + gathers), 2 * logits)


def _storage(step: TrainStep) -> int:
    """Storage weights, where they are not the master weights themselves."""
    storage, optimizer = step.placements.storage, step.placements.optimizer
    same = not step.offloads and storage.dtype == optimizer.dtype and storage.layout == optimizer.layout
    return 0 if same else _bytes(step, storage)


def _held(step: TrainStep, what: str) -> int:
    """Chunks that are held whole, or their gradients."""
    if not step.program.holds:
        return 0
    placement = step.placements.compute if what == "weights" else step.placements.gradient
    width = jnp.dtype(placement.dtype).itemsize / jnp.dtype(step.placements.compute.dtype).itemsize
    layer = sum(_each(step, step.placements.compute, "layers")) // (step.order.rows // step.plan.axes.pipe)
    return int(width * layer * step.order.layers_per_chunk * step.program.slots[what])


def _batch(step: TrainStep) -> int:
    return sum(
        prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in step.abstract_batch().values()
    )


def _bytes(step: TrainStep, placement: Placement) -> int:
    return sum(sum(_each(step, placement, part)) for part in step.specs)


def _each(step: TrainStep, placement: Placement, part: str) -> list[int]:
    """Bytes of each weight of `part` on one device."""
    width = jnp.dtype(placement.dtype).itemsize
    shapes: Tree = map_specs(
        lambda spec, layout: width * prod(local_shape(spec.shape, layout, step.plan.axes)),
        step.specs[part],
        placement.layout[part],
    )
    return jax.tree.leaves(shapes)
