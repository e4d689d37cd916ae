"""The sizes of the mesh axes: filling in the one that is -1, and how many devices a layout takes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from jaxpar.config.errors import UserError
from jaxpar.config.schema import ParallelConfig
from jaxpar.pages.units import plural

ISLANDS = "islands"
"""The axis of parts that train apart: no message of a step crosses it but those of outer updates."""
AXES = ("pipe", "replica", "fsdp", "expert", "context", "tensor")
"""The mesh axes of one island, slowest links first."""
MESH_AXES = (ISLANDS, *AXES)
"""The names of all mesh axes."""
DATA_AXES = ("replica", "fsdp", "expert")
"""Axes that split the rows of an island's batch."""
BATCH_AXES = (ISLANDS, *DATA_AXES)
"""Axes that split the rows of a batch."""
TOKEN_AXES = (*DATA_AXES, "context")
"""Axes that split the tokens of a batch where its loss is counted."""
STREAM_AXES = AXES[1:]
"""Axes that split the residual stream: all but the pipeline's."""
SHARD_AXES = ("fsdp", "expert", "context")
"""Axes over which ZeRO shards dense weights, gradients and optimizer state."""
ROUTED_AXIS = "expert"
ROUTED_AXES = (ROUTED_AXIS,)
"""Axes over which the matrices are split among which a router chooses for each token."""

VIRTUAL_DEVICES = 8
"""Devices that an axis of -1 fills on a machine that has only virtual ones."""


def axis_sizes(parallel: ParallelConfig) -> dict[str, int]:
    """Axis name to size, in mesh order; -1 is left as it is."""
    return {axis: getattr(parallel, axis) for axis in MESH_AXES}


def resolve_axes(parallel: ParallelConfig, devices: int, allow_fewer: bool = False) -> ParallelConfig:
    """The layout with its -1 filled in so that the mesh takes all `devices`.

    Args:
        parallel: The layout; at most one axis is -1.
        devices: Devices of the whole job.
        allow_fewer: Accept a mesh that leaves devices idle.

    Raises:
        UserError: the mesh takes more devices than there are, fewer, or a number that does not divide them.
    """
    sizes = axis_sizes(parallel)
    free = check_axes(parallel)
    fixed = prod(size for size in sizes.values() if size != -1)
    layout = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "all axes 1"
    there_are = f"there {'is' if devices == 1 else 'are'} {devices}"
    if fixed > devices:
        raise UserError(
            f"parallel: the mesh ({layout}) takes {plural(fixed, 'device')} and {there_are}; set the axes to what "
            "there is, for example parallel.fsdp to -1 and the others to 1"
        )
    if free is not None:
        if devices % fixed:
            raise UserError(
                f"parallel.{free}: -1 cannot be filled, the other axes ({layout}) take {plural(fixed, 'device')}, "
                f"which does not divide the {devices} there are"
            )
        return replace(parallel, **{free: devices // fixed})
    if fixed < devices and not allow_fewer:
        raise UserError(
            f"parallel: the mesh ({layout}) takes {fixed} of {plural(devices, 'device')}; "
            "set one axis, for example parallel.fsdp, to -1 to take all of them"
        )
    return parallel


def virtual_devices_needed(parallel: ParallelConfig) -> int:
    """Devices to simulate on a machine without accelerators: the product of the axes.

    An axis of -1 counts as `VIRTUAL_DEVICES` (8) divided by the product of the others, rounded down, and at least 1.
    """
    free = check_axes(parallel)
    fixed = prod(size for size in axis_sizes(parallel).values() if size != -1)
    return fixed if free is None else fixed * max(1, VIRTUAL_DEVICES // fixed)


def fixed_devices(parallel: ParallelConfig) -> int | None:
    """Devices that the layout takes, however many there are; None when an axis is -1."""
    sizes = axis_sizes(parallel).values()
    return None if -1 in sizes else prod(sizes)


def check_axes(parallel: ParallelConfig) -> str | None:
    """The name of the axis that is -1, if there is one.

    Raises:
        UserError: a size is neither positive nor -1, or two axes are -1.
    """
    sizes = axis_sizes(parallel)
    for axis, size in sizes.items():
        if size < 1 and size != -1:
            raise UserError(f"parallel.{axis}: must be at least 1, or -1 for what remains, got {size}")
    free = [axis for axis, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise UserError(f"parallel: only one axis may be -1, and {' and '.join(free)} are")
    return free[0] if free else None
