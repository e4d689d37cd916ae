"""Eight virtual CPU devices for every test, and a compilation cache that survives between runs."""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=600 --xla_cpu_collective_timeout_seconds=600 "
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300"
)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
