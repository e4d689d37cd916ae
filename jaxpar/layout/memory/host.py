"""Whether what a plan offloads fits into the host's memory, checked before anything is compiled."""

from __future__ import annotations

import jax
from jax.sharding import Mesh

from jaxpar.config import UserError
from jaxpar.hardware.host import require_pinned
from jaxpar.layout.memory.device import host_limit, limit_words
from jaxpar.layout.memory.estimate import offloaded_bytes
from jaxpar.layout.step_layout import StepLayout
from jaxpar.memory.remat import offloaded
from jaxpar.pages.units import plural, size


def check_offload(layout: StepLayout, mesh: Mesh, limit: int | None = None) -> None:
    """Raises `UserError` if activations are to be offloaded and cannot be.

    Either the devices have no pinned host memory, or the machine has less memory than `limit` (by default, what it has)
    for what the devices of this process offload; other processes on the machine are not counted.
    """
    names = offloaded(layout.plan.runs)
    if not names:
        return
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    require_pinned(local[0], f"memory.remat: offload of {', '.join(names)}", "save")
    if limit is None:
        limit = host_limit(layout.config, len(local))
    each = offloaded_bytes(layout.config, layout.plan)
    if each * len(local) > limit:
        raise UserError(
            f"memory.remat: offload of {', '.join(names)} takes {size(each, 2)} of host memory for each of "
            f"{plural(len(local), 'device')}, {size(each * len(local), 2)} in all, and {limit_words(layout.config)} "
            f"{size(limit, 2)}; expected fewer names, raise parallel.microbatches, or shard over more machines"
        )
