"""Meshes of devices, functions on every device of a mesh, and what their arrays hold on every process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec
from jaxtyping import PyTree

from jaxpar.config.errors import UserError
from jaxpar.config.plan import AxisSizes
from jaxpar.distributed.devices import Device
from jaxpar.mesh.axes import ISLANDS, MESH_AXES
from jaxpar.mesh.rules import mesh_axes_of
from jaxpar.pages.units import plural
from pallas_kernels.varying import varying_everywhere

type Layouts = PyTree[PartitionSpec]
"""A partition for each array of a tree, or for all arrays of a part of it."""


def build_mesh(sizes: AxisSizes, devices: Sequence[Device] | None = None) -> Mesh:
    """A mesh of all axes over `devices` (default: all devices of the job).

    Devices are ordered by process and laid out with the last axis fastest, so the inner axes (tensor, context, ...)
    stay inside a host as long as their product divides its device count, and the outer ones cross hosts.

    Raises `UserError` when the layout needs another number of devices than there are.
    """
    everything = list(jax.devices() if devices is None else devices)
    shape = tuple(getattr(sizes, axis) for axis in MESH_AXES)
    needed = int(np.prod(shape))
    if needed != len(everything):
        layout = (
            " x ".join(f"{axis} {size}" for axis, size in zip(MESH_AXES, shape, strict=True) if size > 1)
            or "one device"
        )
        raise UserError(
            f"parallel: the layout {layout} needs {plural(needed, 'device')}, but this job has {len(everything)}; "
            "set one axis to -1 to take all that remain"
        )
    everything.sort(key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(everything).reshape(shape), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def abstract_mesh(axes: AxisSizes) -> AbstractMesh:
    """The mesh of a layout without devices, in place of a `Mesh` for a step that is traced and not run."""
    return AbstractMesh(tuple(dict(axes).values()), tuple(dict(axes)), axis_types=(AxisType.Auto,) * len(MESH_AXES))


def mapped[**P, R](
    function: Callable[P, R], mesh: Mesh | AbstractMesh, compute: str, in_layouts: Layouts, out_layouts: Layouts
) -> Callable[P, R]:
    """`function` on every device of `mesh`, manual over every axis, with varying types checked.

    Where arguments differ between islands, so may all arrays of `function`. Where `compute` (a dtype) is float32,
    matmuls are float32 on GPUs too, which would multiply in TF32 by default.
    """
    precision = "highest" if compute == "float32" else "default"
    partitions = jax.tree.leaves(in_layouts, is_leaf=lambda x: isinstance(x, PartitionSpec))
    apart = frozenset({ISLANDS} & set().union(*map(mesh_axes_of, partitions)))

    @wraps(function)
    def precise(*arguments: P.args, **named: P.kwargs) -> R:
        with jax.default_matmul_precision(precision), varying_everywhere(apart):
            return function(*arguments, **named)

    return jax.shard_map(precise, mesh=mesh, in_specs=in_layouts, out_specs=out_layouts, check_vma=True)


def to_numpy[Tree](arrays: Tree) -> Tree:
    """Arrays over a mesh as NumPy, on every process; each of them must call it."""
    return jax.device_get(arrays) if jax.process_count() == 1 else multihost_utils.process_allgather(arrays, tiled=True)
