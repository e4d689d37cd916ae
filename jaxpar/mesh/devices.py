"""Devices before there is a mesh: virtual ones on a machine without a GPU, and joining several processes.

Both must happen before JAX looks at its devices for the first time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import jax

from jaxpar.config.errors import UserError
from jaxpar.config.schema import DistributedConfig
from jaxpar.hardware.memory import POOL_FRACTION, POOL_VARIABLES
from jaxpar.hardware.xla_flags import check_flags, merged, xla_flags
from jaxpar.mesh.meeting import meet

type Device = Any
"""A `jax.Device`, which type checkers take for a variable."""

COLLECTIVE_TIMEOUTS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=120",
    "--xla_cpu_collective_call_terminate_timeout_seconds=600",
    "--xla_cpu_collective_timeout_seconds=600",
)
"""XLA:CPU ends a run whose collective waits longer than these; a busy laptop needs more patience than the default."""

MOST_VIRTUAL = 64
"""Virtual CPU devices that one process may have: each has threads of its own."""

CONNECT_S = 60
"""How long JAX may take to connect processes that are all there, in seconds, at least: when it fails it aborts."""


def has_gpu() -> bool:
    """Whether an NVIDIA driver is present; does not touch JAX."""
    if os.path.exists("/proc/driver/nvidia/version"):
        return True
    program = shutil.which("nvidia-smi")  # images carry it where there is no driver
    return program is not None and subprocess.run([program], capture_output=True, check=False).returncode == 0


def prepare_devices(needed: int, distributed: DistributedConfig) -> None:
    """Make `needed` devices exist in the job, as far as that is ours to decide.

    On a machine without a GPU, and unless `JAX_PLATFORMS` says otherwise, each process gets its share of `needed`
    virtual CPU devices. On a machine with one, XLA gets the flags that programs for GPUs are compiled with, but for
    those that the user set. With `distributed.coordinator` set, joins the other processes. Does nothing once JAX has
    looked at its devices. Raises `UserError` when XLA does not know a flag, or when the other processes cannot be
    reached.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms == "cpu" or (not platforms and not has_gpu()):
        if "xla_force_host_platform_device_count" not in flags:
            try:
                jax.config.update("jax_num_cpu_devices", _virtual(needed, distributed.processes))
            except RuntimeError:  # JAX has looked at its devices already: they are what they are
                return
        jax.config.update("jax_platforms", "cpu")
        os.environ["XLA_FLAGS"] = merged(COLLECTIVE_TIMEOUTS, flags)
    else:
        flags = merged(xla_flags(), flags)
        check_flags(flags)  # XLA ends the process over an unknown one
        if not any(name in os.environ for name in POOL_VARIABLES):
            os.environ[POOL_VARIABLES[0]] = str(POOL_FRACTION)
        os.environ["XLA_FLAGS"] = flags
    if distributed.coordinator is not None and not jax.distributed.is_initialized():
        _join(distributed.coordinator, distributed.processes, distributed.process_id, distributed.timeout_s)


def _virtual(needed: int, processes: int) -> int:
    """Virtual devices of one process. Raises `UserError` for more than a machine can pretend to have."""
    share = max(1, needed // processes)
    if share > MOST_VIRTUAL:
        raise UserError(
            f"parallel: the mesh takes {needed} devices, and a machine without GPUs stands in for at most "
            f"{MOST_VIRTUAL * processes}; choose a smaller layout, or run it on the cluster that it is for"
        )
    return share


def _join(coordinator: str, processes: int, process_id: int, timeout_s: int) -> None:
    meet(coordinator, processes, process_id, timeout_s)
    try:
        jax.distributed.initialize(
            coordinator_address=coordinator,
            num_processes=processes,
            process_id=process_id,
            initialization_timeout=max(timeout_s, CONNECT_S),
        )
    except RuntimeError as error:
        raise UserError(
            f"distributed.coordinator is {coordinator!r}: process {process_id} of {processes} could not join "
            f"({str(error).splitlines()[0]})"
        ) from error
