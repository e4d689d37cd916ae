"""What a device has left for activations: from shapes alone, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxpar.config import Config
from jaxpar.config.plan import LayerRun, Plan
from jaxpar.layers.declared import activation_names
from jaxpar.memory.pareto import NO_LIMIT
from jaxpar.memory.remat import remat_map
from jaxpar.mesh.build import abstract_mesh
from jaxpar.training.memory_estimate import estimate_memory
from jaxpar.training.pipeline import layer_order
from jaxpar.training.step import TrainStep


@dataclass(frozen=True)
class Room:
    """A device's memory and what takes it, beside what layers keep between forward and backward."""

    usable_bytes: int
    """What a program may take of the device."""
    parts: Mapping[str, int]
    """Bytes by class (`memory_estimate.MemoryEstimate`)."""
    units: int
    """Microbatches times chunks that are kept at the same time: the slots of the stash."""
    host_bytes: int = 0
    """What master weights and moments take of the host's memory, for one device."""

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

    def host_unit_bytes(self, limit: int | None) -> int:
        """What of one microbatch may lie in host memory of one chunk, where `limit` bytes are for a device."""
        return NO_LIMIT if limit is None else max(0, limit - self.host_bytes) // self.units


def memory_room(config: Config, plan: Plan, usable_bytes: int) -> Room:
    """What is left of `usable_bytes` on a device under `plan`; what its `runs` keep plays no part.

    Temporaries are those of a layer that makes everything again, which has the most of them.
    """
    slots = layer_order(plan, config.model).layers_per_chunk
    again = LayerRun(slots, dict(remat_map("full", activation_names(config.model))))
    step = described_step(config, replace(plan, runs=(again,)))
    estimate = estimate_memory(step)
    parts = estimate._replace(saved_activations=0, host=0)._asdict()
    return Room(usable_bytes, parts, step.program.slots["stash"], estimate.host if step.filed is None else 0)


def described_step(config: Config, plan: Plan) -> TrainStep:
    """The step of `plan` on devices that need not be there, to be traced and not to be run."""
    # What the backends keep is the same, and this one can be traced anywhere.
    return TrainStep(config, plan.with_attention("xla"), abstract_mesh(plan.axes))
