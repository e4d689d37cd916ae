"""The residency for each value of `memory.optimizer_offload`."""

from __future__ import annotations

from jax.sharding import Mesh

from jaxpar.layout.step_layout import StepLayout
from jaxpar.training.residency.on_device import OnDevice
from jaxpar.training.residency.on_disk import OnDisk
from jaxpar.training.residency.on_host import OnHost

RESIDENCIES: dict[str, type[OnDevice]] = {"none": OnDevice, "host": OnHost, "file": OnDisk}


def residency_of(layout: StepLayout, mesh: Mesh) -> OnDevice:
    """The residency of a plan's state, on a mesh."""
    return RESIDENCIES[layout.plan.optimizer_offload](layout, mesh)
