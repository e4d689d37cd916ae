"""What a device has left for activations: from shapes alone, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import AbstractMesh

from jaxpar.config import Config
from jaxpar.config.counting import padded_vocab
from jaxpar.config.plan import Plan
from jaxpar.memory.layer_shape import FLOAT32_BYTES, layer_shape
from jaxpar.memory.pipeline_offload import working_bytes
from jaxpar.mesh.parameters import Tree
from jaxpar.mesh.placements import Placement, bytes_per_device
from jaxpar.training.memory_check import state_bytes
from jaxpar.training.step import TrainStep


@dataclass(frozen=True)
class Room:
    """A device's memory and what takes it, beside what layers keep between forward and backward."""

    usable_bytes: int
    """What a program may take of the device."""
    parts: Mapping[str, int]
    """Bytes by what they are for."""
    units: int
    """Microbatches times chunks that are kept at the same time: the slots of the stash."""
    sent_bytes: int
    """What a pipeline has on the way between chunks, included in `parts`."""

    @property
    def taken_bytes(self) -> int:
        """All parts together."""
        return sum(self.parts.values())

    @property
    def left_bytes(self) -> int:
        """What is left for activations; below 0 where the rest alone does not fit."""
        return self.usable_bytes - self.taken_bytes

    @property
    def unit_bytes(self) -> int:
        """What one microbatch may keep in one chunk."""
        return self.left_bytes // self.units


def memory_room(config: Config, plan: Plan, usable_bytes: int) -> Room:
    """What is left of `usable_bytes` on a device under `plan`; what its `runs` keep plays no part.

    An estimate: XLA places buffers of its own, and shares memory between what is never needed together. The working
    sets of the head, of a layer and of the update are not needed together, so the largest of them counts.
    """
    axes = dict(plan.axes)
    mesh: Any = AbstractMesh(tuple(axes.values()), tuple(axes))  # sizes are asked for, and no devices
    step = TrainStep(config, plan, mesh)
    shape = layer_shape(config, plan.axes, plan.microbatch_rows)
    slots = step.program.slots
    between = (slots["arrivals"] + slots["cotangents"] + slots["outputs"]) * shape.part_tokens * shape.embed
    sent = between * shape.item_bytes
    parts = {
        "master weights and moments": 0 if step.offloads else state_bytes(step),
        "stored weights": _stored(step),
        "gradients": bytes_per_device(step.specs, step.placements.gradient, plan.axes),
        "gathered layers": _gathered_layers(step),
        "head, layer or update": max(_head(step, config, plan), working_bytes(shape)),
        "sent between chunks": sent,
    }
    return Room(usable_bytes, parts, slots["stash"], sent)


def _stored(step: TrainStep) -> int:
    """Weights as they lie between their uses in a step, where that is a copy of the master weights."""
    storage, master = step.placements.storage, step.placements.optimizer
    if not step.offloads and (storage.dtype, storage.layout) == (master.dtype, master.layout):
        return 0
    return bytes_per_device(step.specs, storage, step.plan.axes)


def _gathered_layers(step: TrainStep) -> int:
    """The layer that computes, the one that is gathered meanwhile, and a layer's gradient before it is reduced."""
    compute, storage = step.placements.compute, step.placements.storage
    layer = _part(step, compute, ["layers"]) // step.order.rows
    return (3 if compute.layout["layers"] != storage.layout["layers"] else 1) * layer


def _head(step: TrainStep, config: Config, plan: Plan) -> int:
    """Head and embedding as they are multiplied, the head's gradient, and a tile's logits with their gradient."""
    shape = layer_shape(config, plan.axes, plan.microbatch_rows)
    ends = [name for name in step.specs if name != "layers"]
    gathered = step.placements.compute.layout != step.placements.storage.layout
    ranks = plan.axes.tensor * (plan.axes.pipe if plan.pipe_ends == "shared" else 1)
    logits = FLOAT32_BYTES * shape.tokens * padded_vocab(config.model) // (ranks * plan.loss_tiles)
    return 2 * logits + (2 * _part(step, step.placements.compute, ends) if gathered else 0)


def _part(step: TrainStep, placement: Placement, names: list[str]) -> int:
    """Bytes per device of some of the weights in `placement`."""
    only = lambda tree: {name: tree[name] for name in names}
    specs: Tree = only(step.specs)
    return bytes_per_device(specs, Placement(only(placement.layout), placement.dtype), step.plan.axes)
