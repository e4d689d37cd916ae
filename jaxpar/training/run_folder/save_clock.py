"""The clock that says after which steps of a run to save."""

from __future__ import annotations

import time
from collections.abc import Callable

from jaxpar.checkpoint.processes import run_on_process_0

LOOK_S = 60.0
"""Process 0 looks at its clock about this often: a look is a collective, and the next step waits for it."""


class SaveClock:
    """Decides after which steps a save is due (`checkpoint.every_minutes`), alike on all processes.

    Clocks differ between processes, so only that of process 0 counts. At a look it decides for all, and also after
    which step the next look comes; steps in between cost nothing.

    Args:
        minutes: between two saves; None or 0 turns this off.
        clock: in seconds.
    """

    def __init__(self, minutes: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = 60 * minutes if minutes else None
        self._clock = clock
        self.start(1)

    def start(self, first: int) -> None:
        """The next step is `first`, and the minutes to the first save begin."""
        self.saved()
        self.restart(first)

    def restart(self, first: int) -> None:
        """The next step is `first`, after which steps take longer or shorter than before."""
        # The first look comes after the second step, since the first is slower than most.
        self._look = first + 1
        self._seen, self._seen_at = first - 1, self._clock()

    def looks(self, step: int) -> bool:
        """Whether `due` must be called after `step`; the same on all processes."""
        return self._every_s is not None and step >= self._look

    def due(self, step: int) -> bool:
        """Whether a save is due after `step`; without a look at `step`, it is not. Collective at a look."""
        if not self.looks(step):
            return False
        due, self._look = run_on_process_0(lambda: self._decide(step))
        return due

    def saved(self) -> None:
        """A save has begun, for whichever reason."""
        self._saved_at = self._clock()

    def _decide(self, step: int) -> tuple[bool, int]:
        """On process 0: whether a save is due after `step`, and the step of the next look."""
        assert self._every_s is not None, "looks says no"
        now = self._clock()
        steps_per_s = (step - self._seen) / max(now - self._seen_at, 1e-9)
        self._seen, self._seen_at = step, now
        left_s = self._saved_at + self._every_s - now
        wait_s = min(LOOK_S, left_s if left_s > 0 else self._every_s)
        return left_s <= 0, step + max(1, round(wait_s * steps_per_s))
