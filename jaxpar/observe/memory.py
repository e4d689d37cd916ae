"""Memory of this process: of its devices where they report it, else of the process itself.

GPUs report what XLA's allocator holds, so the number is the largest over this process's devices. CPU devices report
nothing: then it is the resident memory of the process, which all its virtual devices, Python and the compiler share.
`memory_kind` says which of the two a number is; they must not be compared.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import jax

from jaxpar.observe.events import MemoryKind


def memory_kind() -> MemoryKind:
    """`device` where the devices report their memory, `host` where it is the process's own."""
    return "device" if _reported("peak_bytes_in_use") else "host"


def peak_bytes() -> int:
    """Largest memory in use since the process started, in bytes: the worst local device, or resident host memory."""
    reported = _reported("peak_bytes_in_use")
    return max(reported) if reported else _host_peak()


def bytes_in_use() -> int:
    """Memory in use now, in bytes: the worst local device, or resident host memory."""
    reported = _reported("bytes_in_use")
    return max(reported) if reported else _host_now()


def _reported(key: str) -> list[int]:
    stats = [device.memory_stats() for device in jax.local_devices()]
    return [values[key] for values in stats if values and key in values]


def _host_peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, KiB on Linux


def _host_now() -> int:
    statm = Path("/proc/self/statm")
    if not statm.exists():  # macOS has no cheap way to ask
        return _host_peak()
    return int(statm.read_text().split()[1]) * resource.getpagesize()
