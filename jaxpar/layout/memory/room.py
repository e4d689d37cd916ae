"""The memory that a device has left for activations: from shapes alone, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxpar.config import Config
from jaxpar.config.plan import LayerRun, Plan
from jaxpar.layers.declared import activation_names
from jaxpar.layout.choices.pipeline import layer_order
from jaxpar.layout.memory.estimate import estimate_memory, plan_slots
from jaxpar.memory.pareto import NO_LIMIT
from jaxpar.memory.remat import remat_map


@dataclass(frozen=True)
class Room:
    """A device's memory and its use, apart from what layers keep between forward and backward."""

    usable_bytes: int
    """Bytes that a program may take of the device."""
    parts: Mapping[str, int]
    """Bytes by class (`estimate.MemoryEstimate`)."""
    units: int
    """Microbatches times chunks that are kept at the same time: the slots of the stash."""
    host_bytes: int = 0
    """Bytes of host memory that master weights and moments take, for one device."""

    @property
    def used_bytes(self) -> int:
        """Bytes that all parts take together."""
        return sum(self.parts.values())

    @property
    def left_bytes(self) -> int:
        """Bytes left for activations; below 0 where the rest alone does not fit."""
        return self.usable_bytes - self.used_bytes

    @property
    def unit_bytes(self) -> int:
        """Bytes that one microbatch may save in one chunk."""
        return self.left_bytes // self.units

    def host_unit_bytes(self, limit: int | None) -> int:
        """Bytes that one microbatch may keep in host memory in one chunk, with `limit` bytes for a device."""
        return NO_LIMIT if limit is None else max(0, limit - self.host_bytes) // self.units


def memory_room(config: Config, plan: Plan, usable_bytes: int) -> Room:
    """The part of `usable_bytes` that `plan` leaves on a device, without activations that its `runs` save and the state
    that stays on the device because there is room.

    Temporaries are those of a layer that recomputes everything, which has the most of them.
    """
    slots = layer_order(plan, config.model).layers_per_chunk
    again = LayerRun(slots, dict(remat_map("full", activation_names(config.model))))
    estimate = estimate_memory(config, replace(plan, runs=(again,), resident_weights=()))
    parts = estimate._replace(saved_activations=0, host=0)._asdict()
    on_host = estimate.host if plan.optimizer_offload != "file" else 0
    return Room(usable_bytes, parts, plan_slots(plan).stash, on_host)
