"""The NCCL library of this process, the headers that PJRT was compiled with, and versions with known faults."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MAPS = Path("/proc/self/maps")
"""The files in this process's memory. Not the package's metadata: LD_LIBRARY_PATH may have put another one there."""

MAGIC = 0xCAFEBEEF.to_bytes(4, "little")
"""It stands before the version of the headers wherever a program was compiled with NCCL_CONFIG_INITIALIZER."""
ENCODED = range(2_00_00, 10_00_00)
"""Versions as NCCL encodes them."""

type Version = tuple[int, int, int]


class Loaded(NamedTuple):
    """Versions of NCCL in this process."""

    library: Version
    headers: Version | None
    """The version that JAX's plugin for CUDA was compiled with; None where it does not tell."""

    def __str__(self) -> str:
        return f"{text(self.library)} (headers of JAX's plugin: {text(self.headers) if self.headers else 'not known'})"


@dataclass(frozen=True)
class Fault:
    """A fault of some versions of NCCL."""

    first: Version
    """The first version that has it."""
    mended: Version | None
    """The first one without it; None where none is known."""
    what: str
    """The fault in words; `{headers}` are those of the plugin."""
    source: str
    machine: str | None = None
    """The processor architecture that it needs; None for any."""
    pipelined: bool = False
    """Whether only pipelines meet it."""
    headers: Version | None = None
    """It needs headers before this version; None where they do not matter."""


FAULTS = (
    Fault((0, 0, 0), (2, 29, 3), "deadlocks without a word on aarch64 (GH200, GB200)", "NVIDIA/nccl#2353", "aarch64"),
    Fault((2, 30, 7), (2, 31, 2), "has hung pipelines on 8 H100", "NVIDIA/jaxpp#11", pipelined=True),
    Fault(
        (2, 30, 0), None, "is newer than the headers of JAX's plugin ({headers}), and 2.30.7 with those of 2.29.7 has "
        "hung exchanges of experts on 704 GB200", "marin-community/marin#8870", headers=(2, 30, 0),
    ),
)  # fmt: skip
"""Pipelines passed with 2.31.2, the next version that was tried. The third was seen with library 2.30.7 and headers
2.29.7 and not with equal ones; NVIDIA says that a library works with older headers."""


def loaded(maps: Path = MAPS, ask: Callable[[str], int] | None = None) -> Loaded | None:
    """The versions of NCCL that this process has loaded; None without the library.

    Args:
        maps: the process's memory map.
        ask: path of a loaded library -> its version as `ncclGetVersion` gives it, such as 23007.
    """
    files = maps.read_text() if maps.exists() else ""
    library, plugin = (
        re.search(rf"\s(/\S*{name})$", files, re.MULTILINE) for name in (r"libnccl\.so\S*", r"xla_cuda_plugin\.so")
    )
    if library is None:
        return None
    return Loaded(_version((ask or _ask)(library[1])), None if plugin is None else headers_of(Path(plugin[1])))


def headers_of(plugin: Path) -> Version | None:
    """The version of NCCL's headers that a shared library was compiled with; None where it does not tell."""
    with open(plugin, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(MAGIC)
        while at >= 0:
            if (code := int.from_bytes(content[at + 4 : at + 8], "little")) in ENCODED:
                return _version(code)
            at = content.find(MAGIC, at + 1)
    return None


def _version(code: int) -> Version:
    return code // 10_000, code // 100 % 100, code % 100


def _ask(path: str) -> int:
    code = ctypes.c_int()
    ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code))
    return code.value


def faults(present: Loaded | None, machine: str, *, pipelined: bool) -> list[str]:
    """A sentence for each known fault of the versions, on a processor architecture such as `aarch64`."""
    if present is None:
        return []
    version, headers = present
    return [
        f"NCCL {text(version)} {fault.what.format(headers=headers and text(headers))} ({fault.source}): "
        f"install {_remedy(fault)}"
        for fault in FAULTS
        if fault.first <= version
        and (fault.mended is None or version < fault.mended)
        and fault.machine in (None, machine)
        and (pipelined or not fault.pipelined)
        and (fault.headers is None or (headers is not None and headers < fault.headers))
    ]


def _remedy(fault: Fault) -> str:
    if fault.headers is not None:
        return f"a release of JAX whose plugin has the headers of {text(fault.headers)} or newer, as 0.11.2 has"
    assert fault.mended is not None, "what newer headers mend has these"
    return f"{text(fault.mended)} or newer"


def text(version: Version) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))
