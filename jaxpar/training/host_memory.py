"""Whether what a plan offloads has a place in the host's memory, asked before anything is compiled."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from jaxpar.config import UserError
from jaxpar.memory.remat import offloaded
from jaxpar.training.activation_memory import chunk_bytes
from jaxpar.training.memory_check import host_limit, limit_words, mebibytes
from jaxpar.training.step import TrainStep

PINNED = "pinned_host"
"""JAX's name of the memory that devices copy to and from by themselves."""


def offloaded_bytes(step: TrainStep) -> int:
    """Bytes in the host's memory of each device's activations: as many chunks as its stash has slots."""
    if not offloaded(step.plan.runs):
        return 0
    return step.program.slots["stash"] * chunk_bytes(step).offloaded


def check_offload(step: TrainStep, limit: int | None = None) -> None:
    """Raises `UserError` where activations are to be offloaded and cannot be.

    Either the devices have no pinned host memory, or the machine has less memory than `limit` (by default, what it has)
    for what the devices of this process offload; other processes on the machine are not counted.
    """
    names = offloaded(step.plan.runs)
    if not names:
        return
    local = [device for device in step.mesh.devices.flat if device.process_index == jax.process_index()]
    require_pinned(names, local[0].device_kind, [memory.kind for memory in local[0].addressable_memories()])
    if limit is None:
        limit = host_limit(step, len(local))
    each = offloaded_bytes(step)
    if each * len(local) > limit:
        raise UserError(
            f"memory.remat: offload of {', '.join(names)} takes {mebibytes(each)} of host memory for each of "
            f"{len(local)} devices, {mebibytes(each * len(local))} in all, and {limit_words(step)} {mebibytes(limit)}; "
            "expected fewer names, raise parallel.microbatches, or shard over more machines"
        )


def require_pinned(names: Sequence[str], device: str, memories: Sequence[str]) -> None:
    """Raises `UserError` where `names` are to be offloaded from a kind of device that has no pinned host memory."""
    if PINNED not in memories:
        raise UserError(
            f"memory.remat: offload of {', '.join(names)} needs {PINNED} memory, and {device} has only "
            f"{', '.join(memories)}; expected save"
        )
