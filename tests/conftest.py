"""Eight virtual CPU devices for every test, quiet while JAX is imported, and the longest tests first."""

from __future__ import annotations

import os

import pytest

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

LONGEST = 600
"""Seconds; a test that asks for a longer limit is among the longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest, so that at the end no worker waits for another that has just begun with one."""

    def limit(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        asked = float(marker.args[0]) if marker else 0.0
        return asked if asked > LONGEST else 0.0

    items.sort(key=limit, reverse=True)
