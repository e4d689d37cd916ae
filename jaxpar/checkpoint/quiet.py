"""Orbax and TensorStore, kept off the screen: their errors are raised, and told in one sentence by the checkpointer."""

from __future__ import annotations

import functools
import logging
import os
import sys

MARKS = (f"{os.sep}orbax{os.sep}checkpoint{os.sep}", ".orbax-checkpoint-tmp")
"""Orbax's source files, and the folders in which it writes: one of them is in each of its records."""


@functools.cache
def quieten() -> None:
    """Once per process, drop what is printed beside an error that is raised as well.

    Orbax logs the traceback of a failed background write. TensorStore's other writes then end after Orbax has closed
    its event loop: each prints `Event loop is closed` as an unraisable exception, or asyncio logs that nobody took its
    error. Anything else passes: the records of others, and other unraisable exceptions.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_not_from_orbax)
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        late = isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"
        if not (late and unraisable.object is None):
            before(unraisable)

    sys.unraisablehook = hook


def _not_from_orbax(record: logging.LogRecord) -> bool:
    text = f"{record.pathname}\n{record.getMessage()}"
    return not any(mark in text for mark in MARKS)
