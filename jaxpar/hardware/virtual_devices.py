"""Settings of XLA:CPU for virtual devices of one process that stand in for GPUs."""

from __future__ import annotations

import os

COLLECTIVE_TIMEOUTS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=120",
    "--xla_cpu_collective_call_terminate_timeout_seconds=600",
    "--xla_cpu_collective_timeout_seconds=600",
)
"""XLA:CPU ends a run whose collective waits longer than these; a busy laptop needs more than the default."""

THREADS_VARIABLE = "PJRT_NPROC"
"""The environment variable from which XLA:CPU takes the size of its thread pool, when its client is made."""

THREADS_PER_DEVICE = 4


def threads_for(devices: int) -> int:
    """The number of threads that the pool of `devices` devices needs.

    XLA:CPU blocks a thread of the pool in every collective that waits for another device, and one device may wait in
    several: in a permute, say, and in an all-gather of a branch that does not depend on it. By default the pool has
    one thread per device or core, and a program stops for ever once all of them are blocked: a pipeline with
    `pipe_ticks: branching` and `context: 2` on 8 devices did within two steps with 8 threads, and not in 200 with 32.
    Idle threads cost time too: 64 took a fifth more processor time than 8, 32 took a few percent.
    """
    return max(os.cpu_count() or 1, THREADS_PER_DEVICE * devices)
