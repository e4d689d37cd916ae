"""From axis sizes and devices to a `jax.sharding.Mesh`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxpar.config.errors import UserError
from jaxpar.config.plan import AxisSizes
from jaxpar.distributed.devices import Device
from jaxpar.mesh.axes import AXES
from jaxpar.units import plural


def build_mesh(sizes: AxisSizes, devices: Sequence[Device] | None = None) -> Mesh:
    """A mesh of all six axes over `devices` (default: all devices of the job).

    Devices are ordered by process and laid out with the last axis fastest, so the inner axes (tensor, context, ...)
    stay inside a host as long as their product divides its device count, and the outer ones cross hosts.

    Raises `UserError` when the layout needs another number of devices than there are.
    """
    everything = list(jax.devices() if devices is None else devices)
    shape = tuple(getattr(sizes, axis) for axis in AXES)
    needed = int(np.prod(shape))
    if needed != len(everything):
        layout = (
            " x ".join(f"{axis} {size}" for axis, size in zip(AXES, shape, strict=True) if size > 1) or "one device"
        )
        raise UserError(
            f"parallel: the layout {layout} needs {plural(needed, 'device')}, but this job has {len(everything)}; "
            "set one axis to -1 to take all that remain"
        )
    everything.sort(key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(everything).reshape(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def abstract_mesh(axes: AxisSizes) -> AbstractMesh:
    """The mesh of a layout without devices, in place of a `Mesh` for a step that is traced and not run."""
    return AbstractMesh(tuple(dict(axes).values()), tuple(dict(axes)), axis_types=(AxisType.Auto,) * len(AXES))
