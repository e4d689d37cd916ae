"""Checks the machine without JAX: driver, GPUs, other programs on them, host memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jaxpar.checkup.finding import Finding
from jaxpar.pages.units import GIB, size

LEAST_DRIVER = {12: 525, 13: 580}
"""The first branch of the driver that runs programs of a CUDA release: NVIDIA's table of CUDA compatibility."""

IN_USE_MIB = 512
"""Memory in use on a GPU above which another program is assumed."""

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_BYTES = GIB
"""NCCL's transport inside a host uses shared memory; containers have 64 MiB by default."""


@dataclass(frozen=True)
class Gpu:
    """A line of nvidia-smi."""

    name: str
    driver: str
    total_mib: int
    used_mib: int


def read_gpus(listed: str) -> list[Gpu]:
    """The GPUs in the output of `query`; a value that the driver does not know counts as 0."""
    gpus = []
    for line in listed.strip().splitlines():
        name, driver, total, used = (part.strip() for part in line.rsplit(",", 3))
        gpus.append(Gpu(name, driver, *(int(text) if text.isdigit() else 0 for text in (total, used))))
    return gpus


def query() -> str | None:
    """Name, driver and memory of each GPU by nvidia-smi; None where there is no driver."""
    if shutil.which("nvidia-smi") is None:
        return None
    columns = "--query-gpu=name,driver_version,memory.total,memory.used"
    asked = subprocess.run(
        ["nvidia-smi", columns, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False
    )
    return asked.stdout if asked.returncode == 0 else None


def check_machine(gpus: list[Gpu], cuda: int | None) -> Iterator[Finding]:
    """Findings about the driver, the GPUs as the driver sees them, and the host; `cuda` is the plugin's release."""
    if gpus:
        yield _driver(gpus, cuda)
        yield from _others(gpus)
    yield from _host(len(gpus))


def _driver(gpus: list[Gpu], cuda: int | None) -> Finding:
    kinds = ", ".join(f"{count} x {name}" for name, count in Counter(gpu.name for gpu in gpus).items())
    driver = gpus[0].driver
    least = LEAST_DRIVER.get(cuda or 0, 0)
    branch = driver.split(".")[0]
    if branch.isdigit() and int(branch) < least:
        return Finding(
            "driver",
            "fail",
            f"{driver}, and CUDA {cuda} needs {least} or newer",
            "update the host's driver",
        )
    return Finding("driver", "ok", f"{driver}, {kinds}")


def _others(gpus: list[Gpu]) -> Iterator[Finding]:
    in_use = [(index, gpu) for index, gpu in enumerate(gpus) if gpu.used_mib > IN_USE_MIB]
    if in_use:
        words = ", ".join(f"GPU {index} {gpu.used_mib} of {gpu.total_mib} MiB" for index, gpu in in_use)
        yield Finding(
            "GPU memory",
            "warn",
            f"in use before the run: {words}",
            "end the processes that nvidia-smi lists there, or use other GPUs",
        )


def _host(gpus: int) -> Iterator[Finding]:
    memory = _memory()
    available, total = memory.get("MemAvailable", 0), memory.get("MemTotal", 0)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = f"{cores} cores for this process, {size(available)} of {size(total)} of memory free"
    few = gpus and cores < 2 * gpus
    yield Finding(
        "host", "warn" if few else "ok", text,
        f"{gpus} GPUs need more cores: --cpus-per-task in Slurm, limits in Kubernetes" if few else "",
    )  # fmt: skip
    if gpus > 1 and SHARED_MEMORY.is_dir():
        shared = shutil.disk_usage(SHARED_MEMORY).total
        if shared < LEAST_SHARED_BYTES:
            yield Finding(
                "shared memory", "warn", f"{size(shared)}, which several GPUs share for NCCL",
                "docker run --shm-size 16g; in Kubernetes an emptyDir of medium Memory at /dev/shm",
            )  # fmt: skip


def _memory() -> dict[str, int]:
    """/proc/meminfo in bytes; nothing on another system."""
    file = Path("/proc/meminfo")
    if not file.exists():
        return {}
    fields = (line.split() for line in file.read_text().splitlines())
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if len(field) == 3}
