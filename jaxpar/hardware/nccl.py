"""The NCCL library of this process, and versions of it with known faults."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAPS = Path("/proc/self/maps")
"""The files in this process's memory. Not the package's metadata: LD_LIBRARY_PATH may have put another one there."""

type Version = tuple[int, int, int]


@dataclass(frozen=True)
class Fault:
    """A fault of some versions of NCCL."""

    first: Version
    """The first version that has it."""
    mended: Version
    """The first one without it."""
    what: str
    source: str
    machine: str | None = None
    """The processor architecture that it needs; None for any."""
    pipelined: bool = False
    """Whether only pipelines meet it."""


FAULTS = (
    Fault((0, 0, 0), (2, 29, 3), "deadlocks without a word on aarch64 (GH200, GB200)", "NVIDIA/nccl#2353", "aarch64"),
    Fault((2, 30, 7), (2, 31, 2), "has hung pipelines on 8 H100", "NVIDIA/jaxpp#11", pipelined=True),
)
"""2.31.2 is the next one that was tried, and passed; whether 2.30.8 to 2.31.1 have the second is not known."""


def loaded_version(maps: Path = MAPS, ask: Callable[[str], int] | None = None) -> Version | None:
    """The version of the NCCL library that this process has loaded; None where there is none.

    Args:
        maps: the process's memory map.
        ask: path of a loaded library -> its version as `ncclGetVersion` gives it, such as 23007.
    """
    if not maps.exists():
        return None
    mapped = re.search(r"\s(/\S*libnccl\.so\S*)$", maps.read_text(), re.MULTILINE)
    if mapped is None:
        return None
    code = (ask or _ask)(mapped[1])
    return code // 10_000, code // 100 % 100, code % 100


def _ask(path: str) -> int:
    code = ctypes.c_int()
    ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code))
    return code.value


def faults(version: Version | None, machine: str, *, pipelined: bool) -> list[str]:
    """A sentence for each known fault of a version, on a processor architecture such as `aarch64`."""
    if version is None:
        return []
    return [
        f"NCCL {_text(version)} {fault.what} ({fault.source}): install {_text(fault.mended)} or newer"
        for fault in FAULTS
        if fault.first <= version < fault.mended
        and fault.machine in (None, machine)
        and (pipelined or not fault.pipelined)
    ]


def _text(version: Version) -> str:
    return ".".join(map(str, version))
