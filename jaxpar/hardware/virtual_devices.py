"""Settings of XLA:CPU for virtual devices of one process that stand in for GPUs."""

from __future__ import annotations

import ctypes
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


def keep_freed_memory() -> None:
    """Have the C library keep what XLA:CPU frees, in one heap, for what it allocates next.

    XLA:CPU allocates the buffers of a program at each call. Large ones come from the kernel, which clears each page
    when it is first touched, and return to it when the call ends: in a virtual machine that took more time than the
    arithmetic. The process keeps as much memory as it needed at once. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for option, value in (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_ARENA_MAX, 1):
        if mallopt is not None:
            mallopt(option, value)


_MMAP_MAX, _TRIM_THRESHOLD, _ARENA_MAX = -4, -1, -8
"""Options of glibc's `mallopt` (malloc.h)."""
