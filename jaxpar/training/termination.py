"""Signals that ask a run to stop: SIGTERM, which job schedulers send before they kill a process, and Ctrl-C."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.experimental import multihost_utils

_sync_points = itertools.count(1)
"""Numbers of JAX's synchronization points. JAX counts from 0 in every process, and after a signal names the point that
follows the last one reached; numbers that jump over it, such as those of a resumed run's steps, would never meet it."""


class Termination:
    """Turns the signals of this process into a check after each step: is this the one to stop after?"""

    def __init__(self) -> None:
        self._alone = jax.process_count() == 1
        self._asked = self._agreed = False
        self.by = "SIGTERM"
        """The signal that asked, as far as this process knows."""

    def requested(self) -> bool:
        """Whether to stop after the step just taken; once it is True, it stays so.

        Several processes agree on one call, whichever of them got the signal; they must all call it equally often, at
        least after every step.
        """
        if self._alone:
            return self._asked
        self._agreed = self._agreed or multihost_utils.reached_preemption_sync_point(next(_sync_points))
        return self._agreed

    def terminate(self, *_: object) -> None:
        """Handles SIGTERM in a process that is alone; JAX handles it in one of several."""
        self._asked = True

    def interrupt(self, *_: object) -> None:
        """Handles the first Ctrl-C; another one raises `KeyboardInterrupt`."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._asked, self.by = True, "Ctrl-C"
        if not self._alone:
            signal.raise_signal(signal.SIGTERM)  # The processes agree on a step as they do after any other SIGTERM.


@contextmanager
def termination() -> Iterator[Termination]:
    """Handles SIGTERM and Ctrl-C while the context is open.

    Outside the main thread signals cannot be handled, and a single process is never asked to stop. A Ctrl-C that is
    ignored (as in a background job of a script), or that another program handles, is left alone.
    """
    stop = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    handlers = {}
    if jax.process_count() == 1:
        handlers[signal.SIGTERM] = stop.terminate
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handlers[signal.SIGINT] = stop.interrupt
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
