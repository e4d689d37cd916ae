"""Virtual CPU devices for benchmarks of what programs do, not of how fast devices are."""

from __future__ import annotations

import os

from jaxpar.hardware.virtual_devices import THREADS_VARIABLE, threads_for


def one_thread_devices(devices: int) -> None:
    """Has JAX, which must not have started yet, make so many CPU devices that compute with one thread each.

    Otherwise a rank that works alone would take the cores of those that wait, which branching ticks must not.
    """
    flags = f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    os.environ[THREADS_VARIABLE] = str(threads_for(devices))
    os.environ["JAX_PLATFORMS"] = "cpu"
