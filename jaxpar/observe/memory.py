"""Memory in use: of the devices where they report it, else of this process.

GPUs report what XLA's allocator holds, so the number is the largest over this process's devices. CPU devices report
nothing: then it is the resident memory of the process, which all its virtual devices, Python and the compiler share.
`memory_kind` states which of the two a number is; they must not be compared.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import jax

from jaxpar.distributed.devices import Device
from jaxpar.hardware.host import host_memory
from jaxpar.observe.events import MemoryKind


def memory_kind() -> MemoryKind:
    """`device` where the devices report their memory, `host` where it is the process's own."""
    return "device" if _reported("peak_bytes_in_use") else "host"


def peak_bytes() -> int:
    """Largest memory in use since the process started, in bytes: the worst local device, or resident host memory."""
    reported = _reported("peak_bytes_in_use")
    return max(reported) if reported else host_peak()


def bytes_in_use() -> int:
    """Memory in use now, in bytes: the worst local device, or resident host memory."""
    reported = _reported("bytes_in_use")
    return max(reported) if reported else resident_bytes()


def limit_bytes() -> int:
    """The memory limit in bytes: what XLA may take of the smallest local device, or the machine's memory."""
    reported = _reported("bytes_limit")
    return min(reported) if reported else host_memory()


def statistic(device: Device, key: str) -> int | None:
    """A number of a device's allocator, such as `bytes_in_use`; None where it reports none."""
    return (device.memory_stats() or {}).get(key)


def resident_bytes() -> int:
    """Resident memory of this process, in bytes."""
    statm = Path("/proc/self/statm")
    if not statm.exists():  # macOS has no cheap way to ask
        return host_peak()
    return int(statm.read_text().split()[1]) * resource.getpagesize()


def host_peak() -> int:
    """The largest resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, KiB on Linux


def _reported(key: str) -> list[int]:
    numbers = [statistic(device, key) for device in jax.local_devices()]
    return [value for value in numbers if value is not None]
