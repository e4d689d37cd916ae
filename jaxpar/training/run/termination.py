"""SIGTERM, which job schedulers send some time before they kill a process."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
from jax.experimental import multihost_utils

_sync_points = itertools.count(1)
"""Numbers of JAX's synchronization points. JAX counts from 0 in every process, and after a signal names the point that
follows the last one reached; numbers that jump over it, such as those of a resumed run's steps, would never meet it."""


@contextmanager
def termination() -> Iterator[Callable[[], bool]]:
    """While the context is open, turns SIGTERM into a check after each step: is this the one to stop after?

    Several processes agree on one step, whichever of them got the signal; they must all check after every step. Outside
    the main thread signals cannot be caught, and a single process is never asked to stop.
    """
    if jax.process_count() > 1:
        yield lambda: multihost_utils.reached_preemption_sync_point(next(_sync_points))
        return
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield lambda: asked.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)
