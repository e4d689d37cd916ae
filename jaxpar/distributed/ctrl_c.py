"""Ctrl-C on the command line, received by a thread: a second one ends the process whatever its main thread is doing.

Python runs handlers of signals between two instructions of the main thread, which may wait for minutes in a compilation
or for a device.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from jaxpar.distributed import liveness

INTERRUPTED = 130
"""Exit code of a process that Ctrl-C ended, as shells have it."""


@contextmanager
def exit_at_second_signal() -> Iterator[None]:
    """While the context is open, the first Ctrl-C prints what happens next, and a second one ends the process at once.

    What the first one does is up to the handler of SIGINT. Outside the main thread nothing is received.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    listener = threading.Thread(target=_listen, args=(reading,), name="ctrl-c", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)  # The listener ends.
        listener.join()
        os.close(reading)


def _listen(reading: int) -> None:
    """Count the signals of `signal.set_wakeup_fd`, which writes the number of each as a byte."""
    count = 0
    while received := os.read(reading, 64):
        for _ in range(received.count(signal.SIGINT)):
            count += 1
            if count == 1:
                liveness.announce(
                    "Ctrl-C: the run saves after this step and ends (before its first step, it only ends); a second "
                    "Ctrl-C ends it at once, without saving"
                )
            else:
                liveness.end(
                    INTERRUPTED,
                    "ended at once by a second Ctrl-C; the same command continues from the newest checkpoint, or from "
                    "the start where there is none",
                )
