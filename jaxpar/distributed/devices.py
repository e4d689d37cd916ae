"""Devices before there is a mesh: virtual ones on a machine without a GPU, and joining several processes.

Both must happen before JAX looks at its devices for the first time.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxpar.config.errors import UserError
from jaxpar.config.schema import DistributedConfig
from jaxpar.config.spelling import quoted
from jaxpar.distributed.initialize import join
from jaxpar.distributed.job import Job, find_job, visible_gpus
from jaxpar.hardware.autotuned import check_file, file_of
from jaxpar.hardware.catalogue import GPU, gpu_of
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.hardware.host import raise_pinned_limit
from jaxpar.hardware.memory import POOL_FRACTION, POOL_VARIABLES
from jaxpar.hardware.virtual_devices import COLLECTIVE_TIMEOUTS, THREADS_VARIABLE, keep_freed_memory, threads_for
from jaxpar.hardware.xla_flags import check_flags, merged, options, xla_flags
from jaxpar.pages.units import plural

type Device = Any
"""A `jax.Device`, which type checkers take for a variable."""

MOST_VIRTUAL = 64
"""Virtual CPU devices that one process may have: each has threads of its own."""

HOST_GPUS = Path("/proc/driver/nvidia/gpus")


def has_gpu() -> bool:
    """Whether an NVIDIA driver is present; does not touch JAX."""
    if os.path.exists("/proc/driver/nvidia/version"):
        return True
    program = shutil.which("nvidia-smi")  # container images may have it without a driver
    return program is not None and subprocess.run([program], capture_output=True, check=False).returncode == 0


def host_gpus() -> int:
    """NVIDIA GPUs of this machine, whether or not this process may use them."""
    return len(list(HOST_GPUS.iterdir())) if HOST_GPUS.is_dir() else 0


def host_gpu() -> GPU | None:
    """The GPU of this machine as its driver names it, without JAX; None where its GPUs differ or are not known."""
    if not HOST_GPUS.is_dir():
        return None
    files = [folder / "information" for folder in HOST_GPUS.iterdir()]
    models = {line.partition(":")[2].strip() for file in files for line in _lines(file) if line.startswith("Model:")}
    return gpu_of(models.pop()) if len(models) == 1 else None


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.is_file() else []


def prepare_devices(needed: int, distributed: DistributedConfig) -> Job | None:
    """Set up `needed` devices in the job where possible; returns the job when there are other processes.

    On a machine without a GPU, and unless `JAX_PLATFORMS` says otherwise, each process gets its share of `needed`
    virtual CPU devices. On a machine with one, XLA gets the flags that programs for GPUs are compiled with, except
    those that the user set, and its limit of host memory. Where the configuration or a launcher reports it, joins the
    other processes, which are watched from then on. Does nothing on CPUs once JAX has looked at its devices. Raises
    `UserError` when XLA does not know a flag or has read its flags already, or when the other processes cannot be
    reached.
    """
    job = find_job(distributed, os.environ, host_gpus())
    flags = os.environ.get("XLA_FLAGS", "")
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms == "cpu" or (not platforms and not has_gpu()):
        processes = 1 if job is None else job.processes
        flag_values = re.findall(r"xla_force_host_platform_device_count=(\d+)", flags)
        devices = int(flag_values[-1]) if flag_values else needed // processes
        if devices > 1:
            os.environ.setdefault(THREADS_VARIABLE, str(threads_for(min(devices, MOST_VIRTUAL))))
        if not flag_values:
            try:
                jax.config.update("jax_num_cpu_devices", _virtual(needed, processes))
            except RuntimeError as error:  # JAX has initialized its devices already
                if job is not None and not jax.distributed.is_initialized():
                    raise UserError(
                        f"distributed.processes: {job.processes}, and JAX has looked at its devices already; the other "
                        "processes must be joined before, so make the Trainer first, or set distributed.processes=1"
                    ) from error
                return job
        keep_freed_memory()
        jax.config.update("jax_platforms", "cpu")
        os.environ["XLA_FLAGS"] = merged(COLLECTIVE_TIMEOUTS, flags)
    else:
        flags = merged(xla_flags(host_gpu()), flags)
        if (tiles := file_of(flags.split())) is not None:
            check_file(tiles, host_gpu())
        wanted = check_flags(flags)  # XLA ends the process over an unknown one
        if not any(name in os.environ for name in POOL_VARIABLES):
            os.environ[POOL_VARIABLES[0]] = str(POOL_FRACTION)
        raise_pinned_limit(os.environ, _processes_here(job))
        os.environ["XLA_FLAGS"] = flags
        if options() != wanted:
            raise UserError(
                "XLA_FLAGS: JAX was used before jaxpar set the flags for GPUs, so they are not in force; restart "
                f"Python and make the Trainer before anything uses JAX, or start Python with XLA_FLAGS={quoted(flags)}"
            )
    if job is not None and not jax.distributed.is_initialized():
        join(job, distributed)
    return job


def _processes_here(job: Job | None) -> int:
    """Processes of the job on this machine, judged from its GPUs."""
    if job is None:
        return 1
    gpus = host_gpus()
    local_count = len(job.local_devices or ()) or visible_gpus(os.environ, gpus)
    return max(1, min(job.processes, gpus // max(1, local_count)))


def find_devices() -> list[Device]:
    """Find all devices of the job; the processes exchange theirs within JAX's two minutes.

    Raises:
        UserError: this process or another one cannot get its devices.
    """
    try:
        return list(jax.devices())
    except RuntimeError as error:
        text = " ".join(str(error).split())
        missing = re.search(r"local_topology/\w+/(\d+)", text)
        if missing is None:
            raise UserError(f"JAX cannot use the devices ({text}); python -m jaxpar.doctor looks closer") from error
        raise UserError(
            f"process {missing[1]} did not find its devices within two minutes, and the others wait for it: look at "
            "its host, for example with nvidia-smi and python -m jaxpar.doctor"
        ) from error


def devices_per_node(devices: Sequence[Device]) -> int:
    """Devices per node among `devices`; of unequal nodes, the fewest.

    Processes of one machine, each with a GPU of its own, are a node: JAX numbers machines, or what NVLink joins, as
    slices. Where it does not, as on CPUs, a process counts as a node.
    """
    return min(Counter(_node(device) for device in devices).values())


def cluster_of(device: Device, devices: int, node_devices: int | None) -> Cluster | None:
    """A cluster of `devices` devices like `device` from the catalogue, in nodes of `node_devices` (None: one node).

    None if the catalogue does not have it.
    """
    gpu = gpu_of(device.device_kind)
    if gpu is None:
        return None
    each = min(node_devices or devices, devices)
    return parse_cluster(f"{gpu.short}:{-(-devices // each)}x{each}")


def _node(device: Device) -> int:
    for name in ("slice_index", "partition_index"):  # JAX's older and newer name
        if hasattr(device, name):
            return getattr(device, name)
    return device.process_index


def check_devices(job: Job, needed: int | None, devices: Sequence[Device]) -> None:
    """Check that every process has the devices that it should, and all the same number.

    Args:
        job: the processes.
        needed: devices that the layout takes; None for all there are.
        devices: those of the whole job.

    Raises:
        UserError: a process has another number of devices than the launcher or `distributed.devices_per_process` says,
            than the layout takes per process, or than the other processes.
    """
    devices_per_process = Counter(device.process_index for device in devices)
    local = devices_per_process[job.process_id]
    me = f"process {job.process_id} of {job.processes} on {socket.gethostname()}"
    # A launcher counts GPUs.
    applies = devices[0].platform != "cpu" or job.expected_by.startswith("distributed.")
    if applies and job.devices_expected not in (None, local):
        raise UserError(
            f"{job.expected_by}: {me} should have {plural(job.devices_expected, 'device')} and sees {local}; look at "
            "CUDA_VISIBLE_DEVICES, and at how the launcher binds GPUs to processes (docs/clusters.md)"
        )
    if len(devices_per_process) != job.processes:
        raise UserError(
            f"distributed.processes: {plural(job.processes, 'process')} joined, and devices are seen of "
            f"{len(devices_per_process)} only"
        )
    usual = devices_per_process.most_common(1)[0][0]
    odd = sorted(process for process, count in devices_per_process.items() if count != devices_per_process[usual])
    if odd:
        raise UserError(
            f"distributed.processes: process {odd[0]} sees {plural(devices_per_process[odd[0]], 'device')} and process "
            f"{usual} sees {devices_per_process[usual]}; all must have the same number (docs/clusters.md)"
        )
    if needed is not None and needed != len(devices):
        share = f"{needed // job.processes} in each of {plural(job.processes, 'process')}"
        if needed % job.processes:
            share = f"which do not divide among {job.processes} processes"
        raise UserError(
            f"parallel: the layout takes {plural(needed, 'device')}, {share}, and {me} sees {local}, which makes "
            f"{len(devices)}; start another number of processes, or set one axis, for example parallel.fsdp, to -1 to "
            "take what there is"
        )


def _virtual(needed: int, processes: int) -> int:
    """Virtual devices of one process. Raises `UserError` for more than a machine can have."""
    share = max(1, needed // processes)
    if share > MOST_VIRTUAL:
        raise UserError(
            f"parallel: the mesh takes {needed} devices, and a machine without GPUs stands in for at most "
            f"{MOST_VIRTUAL * processes}; choose a smaller layout, or run it on the cluster that it is for"
        )
    return share
