"""Slow steps, a slower pace, and devices that wait for the host, judged from the times of the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from jaxpar.observe.timer import Turn
from jaxpar.pages.units import seconds

LAST = 100
"""Steps that a new one is compared with."""
FEWEST = 10
STRETCH = 20
"""Steps over which a pace is measured."""
SECONDS = 1.0
"""Smaller differences in seconds are not reported."""
HIDDEN = 0.05
"""If the host waits for the devices for this share of a step, they still have work and its own time is hidden."""
WARMING_UP = 3
"""First steps of a process, in which batches are prepared ahead and caches fill."""

PLACES = {
    "batch_seconds": "waiting for a batch",
    "device_seconds": "waiting for the devices",
    "dispatch_seconds": "handing steps to the devices",
    "host_seconds": "in the host between steps",
}


@dataclass(frozen=True)
class SlowStep:
    """A step that took far longer than the ones before it."""

    seconds: float
    median: float
    """Median of the steps before it, in seconds."""
    where: str
    """Share of the time with its cause, such as "5.6 s of it waiting for a batch"."""


class SlowSteps:
    """Compares each step with the median of the last ones.

    Args:
        times: how many times the median a slow step takes; it must also take a second longer. None finds none.
    """

    def __init__(self, times: float | None) -> None:
        self._times = times
        self._turns: deque[Turn] = deque(maxlen=LAST)

    def add(self, turn: Turn) -> SlowStep | None:
        """Add a step. It joins the steps that the next is compared with, so a lasting pace stops being slow."""
        slow = self._compare(turn)
        self._turns.append(turn)
        return slow

    def _compare(self, turn: Turn) -> SlowStep | None:
        if self._times is None or len(self._turns) < FEWEST or turn.seconds <= SECONDS:
            return None
        median = self._median("seconds")
        if turn.seconds <= self._times * median or turn.seconds <= median + SECONDS:
            return None
        worst = max(PLACES, key=lambda name: getattr(turn, name) - self._median(name))
        return SlowStep(turn.seconds, median, f"{seconds(getattr(turn, worst))} of it {PLACES[worst]}")

    def _median(self, name: str) -> float:
        return _median(self._turns, name)


@dataclass(frozen=True)
class SlowPace:
    """Steps that have all become slower."""

    steps: int
    seconds: float
    """Median of these steps."""
    best: float
    """Median of as many earlier ones, at their fastest."""
    where: str
    """Main cause of the difference, such as "0.6 s of it waiting for the devices"."""


class Pace:
    """Compares the median of every `STRETCH` steps with the fastest so far.

    Args:
        times: how many times the fastest a slow one is; a stretch must also lose a second. None finds none.
    """

    def __init__(self, times: float | None) -> None:
        self._times = times
        self._turns: list[Turn] = []
        self._best: dict[str, float] | None = None

    def add(self, turn: Turn) -> SlowPace | None:
        """Add a step; returns a slow pace if the stretch that it ends is one."""
        self._turns.append(turn)
        if self._times is None or len(self._turns) < STRETCH:
            return None
        now = {name: _median(self._turns, name) for name in ("seconds", *PLACES)}
        self._turns = []
        if self._best is None or now["seconds"] <= self._best["seconds"]:
            self._best = now
            return None
        median, best = now["seconds"], self._best
        if median <= self._times * best["seconds"] or (median - best["seconds"]) * STRETCH <= SECONDS:
            return None
        worst = max(PLACES, key=lambda name: now[name] - best[name])
        return SlowPace(STRETCH, median, best["seconds"], f"{seconds(now[worst])} of it {PLACES[worst]}")


def _median(turns: Iterable[Turn], name: str) -> float:
    return float(np.median([getattr(turn, name) for turn in turns]))


@dataclass
class Losses:
    """Time that devices lost because the host was late, in seconds, over a number of steps."""

    steps: int = 0
    seconds: float = 0.0
    """Wall time of the steps."""
    host: float = 0.0
    """Time in which the devices had nothing to do while the host was at work, waiting for batches included."""
    batch: float = 0.0
    """Part of it that the host waited for batches."""
    longest: float = 0.0
    """The longest wait for a single batch."""

    def add(self, turn: Turn) -> None:
        """Count a step. The host's own time is lost where it did not have to wait for the devices afterwards."""
        self.steps += 1
        self.seconds += turn.seconds
        if turn.device_seconds < HIDDEN * turn.seconds:
            self.host += turn.host_seconds + turn.batch_seconds
            self.batch += turn.batch_seconds
            self.longest = max(self.longest, turn.batch_seconds)

    def __add__(self, other: Losses) -> Losses:
        return Losses(
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.host + other.host,
            self.batch + other.batch,
            max(self.longest, other.longest),
        )

    @property
    def batch_share(self) -> float:
        """Share of the time that devices waited for batches."""
        return self.batch / self.seconds if self.seconds else 0.0
