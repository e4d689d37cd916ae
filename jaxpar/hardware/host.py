"""The host's memory: its size, and how much XLA may pin for its devices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Any

from jaxpar.config.errors import UserError
from jaxpar.hardware.sources import chosen
from jaxpar.pages.units import GIB

PINNED = "pinned_host"
"""JAX's name of the host memory that devices copy to and from directly, as in shardings."""

PINNED_SHARE: Annotated[float, chosen("what the trainer sets")] = 0.9
"""Share of the host's memory that its processes may pin together."""

PINNED_VARIABLE = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
"""Variable from which XLA reads how much a process may pin, in GiB (openxla/xla#20633); allocated on demand."""

PREALLOCATED_VARIABLE = "XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE"
"""Variable that makes XLA pin all of it at the start."""

PINNED_GIB = 64
"""The most that a process pins where the variable is not set."""

NO_LIMIT = 2**63
"""More than any machine has."""

PREALLOCATED_GIB = 16
"""Default pinned memory in GiB if all of it is pinned at the start."""


GROUPS = Path("/sys/fs/cgroup")
"""Mount point of Linux's control groups."""

PROCESS_GROUPS = Path("/proc/self/cgroup")
"""Lists this process's control groups."""


def host_memory() -> int:
    """Bytes of memory that the machine has for this process: a container or a batch job may have less than all."""
    return min(
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *group_limits(PROCESS_GROUPS, GROUPS), NO_LIMIT
    )


def group_limits(group_file: Path, mounted: Path) -> Iterator[int]:
    """Limits on the memory of this process's control groups and of those around them, of either version.

    In a container, `group_file` may have paths of the host, while the container's root is mounted: paths that do not
    exist are skipped.
    """
    for line in group_file.read_text().splitlines() if group_file.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (mounted / "memory", "memory.limit_in_bytes") if controllers else (mounted, "memory.max")
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root) and (file := folder / name).exists():
                text = file.read_text().strip()
                yield int(text) if text.isdigit() else NO_LIMIT


def raise_pinned_limit(environment: MutableMapping[str, str], processes: int) -> None:
    """Let XLA pin a process's share of the host's memory, which `processes` share, unless the user set a limit."""
    if PINNED_VARIABLE not in environment and not _preallocated(environment):
        environment[PINNED_VARIABLE] = str(max(1, int(PINNED_SHARE * host_memory() / processes / GIB)))


def pinned_limit(environment: Mapping[str, str]) -> int:
    """The most bytes of host memory that XLA pins in a process with this environment."""
    text = environment.get(PINNED_VARIABLE, "")
    if text.strip().isdigit():
        return int(text) * GIB
    return (PREALLOCATED_GIB if _preallocated(environment) else PINNED_GIB) * GIB


def _preallocated(environment: Mapping[str, str]) -> bool:
    return environment.get(PREALLOCATED_VARIABLE, "").lower() in ("1", "true")


def require_pinned(device: Any, what: str, expected: str) -> None:
    """Raises `UserError` if `device` (a `jax.Device`) has no pinned host memory, which `what` needs.

    `what` begins with a key of the configuration, and `expected` is what to set it to instead.
    """
    memories = [memory.kind for memory in device.addressable_memories()]
    if PINNED not in memories:
        raise UserError(
            f"{what} needs {PINNED} memory, and {device.device_kind} has only {', '.join(memories)}; "
            f"expected {expected}"
        )
