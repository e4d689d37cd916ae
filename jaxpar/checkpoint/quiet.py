"""Keeps Orbax and TensorStore off the screen: their errors are raised, and reported by the checkpointer."""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import traceback
import warnings

MARKS = (f"{os.sep}orbax{os.sep}checkpoint{os.sep}", ".orbax-checkpoint-tmp")
"""Orbax's source files, and the folders in which it writes: one of them is in each of its records."""

NEVER_AWAITED = r"coroutine 'async_serialize_from_host\b.*' was never awaited"


@functools.cache
def quieten() -> None:
    """Once per process, suppress output about errors that are also raised.

    Orbax logs the traceback of a failed background write. TensorStore's other writes then end after Orbax has closed
    its event loop, or never begin: each prints `Event loop is closed` as an unraisable exception, or asyncio logs that
    its error was never retrieved, or Python warns that it was never awaited. Anything else passes: other log records
    and other unraisable exceptions.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_not_from_orbax)
    warnings.filterwarnings("ignore", NEVER_AWAITED, RuntimeWarning)
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        error, text = unraisable.exc_value, str(unraisable.exc_value)
        late = isinstance(error, RuntimeError) and text == "Event loop is closed" and unraisable.object is None
        # Where warnings are errors, this one is raised by the garbage collector.
        never = isinstance(error, RuntimeWarning) and re.match(NEVER_AWAITED, text) is not None
        if not (late or never):
            before(unraisable)

    sys.unraisablehook = hook


def _not_from_orbax(record: logging.LogRecord) -> bool:
    places = [record.pathname, record.getMessage()]
    if record.exc_info:
        places += [frame.filename for frame in traceback.extract_tb(record.exc_info[2])]
    return not any(mark in path for mark in MARKS for path in places)
