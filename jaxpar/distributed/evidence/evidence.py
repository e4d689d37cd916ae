"""Evidence on a job that stands still: what process 0 asks before its verdict, and does not know from reports."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from pathlib import PurePath

from jaxpar.distributed.evidence import ras
from jaxpar.distributed.messages import LOCATION_LENGTH, clean

WAIT_S = 6.0
"""Seconds that a verdict waits for the answers."""
FRAMES = 4
"""Innermost frames of a stack that are shown."""


def stack_of_main_thread() -> str:
    """The stack of the main thread of this process, innermost first: `array.py:12 _value < loop.py:140 _train`."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = traceback.extract_stack(frame)[-FRAMES:] if frame is not None else []
    return " < ".join(f"{PurePath(one.filename).name}:{one.lineno} {one.name}" for one in reversed(frames))


class Evidence:
    """Stacks of processes for which the others wait, and NCCL's counts of collectives.

    Args:
        processes: those that are asked for their stacks.
    """

    def __init__(self, processes: Iterable[int]) -> None:
        self._stacks: dict[int, str | None] = dict.fromkeys(processes)
        self._collectives: str | None = None
        self._until = time.monotonic() + WAIT_S
        self._thread = threading.Thread(target=self._ask, name="ras", daemon=True)
        self._thread.start()

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes that are asked."""
        return tuple(self._stacks)

    def add_stack(self, process: int, stack: str) -> None:
        """The answer of a process."""
        if process in self._stacks:
            self._stacks[process] = clean(stack, LOCATION_LENGTH)

    @property
    def complete(self) -> bool:
        """Whether all have answered, or there has been time enough."""
        answered = None not in self._stacks.values() and not self._thread.is_alive()
        return answered or time.monotonic() > self._until

    def added_to(self, sentence: str) -> str:
        """A verdict with the evidence."""
        stacks = [f"stack of process {process}: {stack}" for process, stack in self._stacks.items() if stack]
        return "; ".join([sentence, *filter(None, [self._collectives]), *stacks])

    def _ask(self) -> None:
        self._collectives = ras.explain(os.environ)
