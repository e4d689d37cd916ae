"""The time after which a step counts as hanging, from the times of steps so far."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

WARMING_UP = 3
"""First steps of a process, and after a restart of its loader, which are not typical."""
FEWEST = 3
"""Steps after which the pace is known."""
LAST = 20
"""Number of steps whose median is the pace."""
TIMES = 5
"""The limit of a step in median steps: its work is always the same."""
LEAST_S = 45.0
"""The lowest limit: with heartbeats and the last messages, the job is over within 60 s."""
UNKNOWN_S = 600.0
"""The limit while the pace is not known."""


class StepLimit:
    """The seconds that a step may take.

    Args:
        fixed_s: the limit as the user set it; None takes `TIMES` the median of the last steps and `LEAST_S` at least,
            and `UNKNOWN_S` while there are too few.
    """

    def __init__(self, fixed_s: float | None) -> None:
        self._fixed_s = fixed_s
        self._steps: deque[float] = deque(maxlen=LAST)
        self._warm = 0

    def start_over(self) -> None:
        """The next steps start from a checkpoint: batches are prefetched again, and caches fill."""
        self._warm = 0

    def took(self, seconds: float) -> None:
        """A step took so long, without the time between it and the previous one."""
        self._warm += 1
        if self._warm > WARMING_UP:
            self._steps.append(seconds)

    @property
    def step_s(self) -> float:
        """The limit of a step while every other process is in a step too."""
        if self._fixed_s is not None:
            return self._fixed_s
        if self._warm < WARMING_UP or len(self._steps) < FEWEST:
            return self.pause_s
        return max(LEAST_S, self._paced_s)

    @property
    def pause_s(self) -> float:
        """The limit of a step while it waits for a process that logs, evaluates or saves."""
        if self._fixed_s is not None:
            return self._fixed_s
        return max(UNKNOWN_S, self._paced_s)

    @property
    def _paced_s(self) -> float:
        return float(math.ceil(TIMES * median(self._steps))) if self._steps else 0.0
