"""The host's memory: what there is of it, and what XLA may pin of it for its devices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

PINNED_SHARE = 0.9
"""Of the host's memory, what its processes may pin together."""

PINNED_VARIABLE = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
"""What XLA reads the most from that one process pins, in GiB (openxla/xla#20633); it is taken as it is needed."""

PREALLOCATED_VARIABLE = "XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE"
"""Where it is true, XLA pins all that it may at once."""

PINNED_GIB = 64
"""What one process pins at most where the variable is not set."""

NO_LIMIT = 2**63
"""More than any machine has."""

PREALLOCATED_GIB = 16
"""The same where all of it is pinned at once."""


GROUPS = Path("/sys/fs/cgroup")
"""Where Linux shows control groups."""

OWN_GROUPS = Path("/proc/self/cgroup")
"""In which of them this process is."""


def host_memory() -> int:
    """Bytes of memory that the machine has for this process: a container or a batch job may have less than all."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *group_limits(OWN_GROUPS, GROUPS), NO_LIMIT)


def group_limits(own: Path, mounted: Path) -> Iterator[int]:
    """Limits on the memory of this process's control groups and of those around them, of either version.

    In a container the paths in `own` may be those of the host, and what is mounted the container's own root: what is
    not there is passed over.
    """
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (mounted / "memory", "memory.limit_in_bytes") if controllers else (mounted, "memory.max")
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root) and (file := folder / name).exists():
                said = file.read_text().strip()
                yield int(said) if said.isdigit() else NO_LIMIT


def raise_pinned_limit(environment: MutableMapping[str, str], processes: int) -> None:
    """Let XLA pin a process's share of the host's memory, where so many are on the host and the user says nothing."""
    if PINNED_VARIABLE not in environment and not _preallocated(environment):
        environment[PINNED_VARIABLE] = str(max(1, int(PINNED_SHARE * host_memory() / processes / 2**30)))


def pinned_limit(environment: Mapping[str, str]) -> int:
    """Bytes of the host's memory that XLA pins at most in a process with this environment."""
    said = environment.get(PINNED_VARIABLE, "")
    if said.strip().isdigit():
        return int(said) * 2**30
    return (PREALLOCATED_GIB if _preallocated(environment) else PINNED_GIB) * 2**30


def _preallocated(environment: Mapping[str, str]) -> bool:
    return environment.get(PREALLOCATED_VARIABLE, "").lower() in ("1", "true")
