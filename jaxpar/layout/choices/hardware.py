"""Facts of a device that requests to kernels state."""

from __future__ import annotations

from typing import TypedDict

from jaxpar.distributed.devices import Device


class Hardware(TypedDict):
    """Fields that every request to a kernel has."""

    platform: str
    compute_capability: float | None
    gpu: str
    processors: int | None


def hardware_of(device: Device) -> Hardware:
    """Platform, compute capability, name and number of multiprocessors; a CPU has only the first and a name."""
    capability = getattr(device, "compute_capability", None)
    return Hardware(
        platform=device.platform,
        compute_capability=None if capability is None else float(capability),
        gpu=getattr(device, "device_kind", ""),
        processors=getattr(device, "core_count", None),
    )
