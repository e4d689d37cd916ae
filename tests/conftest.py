"""Eight virtual CPU devices for every test, and quiet while JAX is imported."""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=600 --xla_cpu_collective_timeout_seconds=600 "
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300"
)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def _import_jax_silently() -> None:
    """Import JAX with the screen turned away: the GPU compiler's libraries write to it where there is no driver."""
    screen, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import jax  # noqa: F401
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        os.close(nowhere)


_import_jax_silently()
