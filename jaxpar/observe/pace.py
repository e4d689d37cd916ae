"""Slow steps, a pace that became slower, devices that wait for the host: all judged from the times of the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from jaxpar.observe.timer import Turn

LAST = 100
"""Steps that a new one is compared with."""
FEWEST = 10
STRETCH = 20
"""Steps over which a pace is measured."""
SECONDS = 1.0
"""What takes less than this longer is not worth a word."""
HIDDEN = 0.05
"""The host waits for the devices this share of a step when they still have work: its own time is then hidden."""
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
    """What the time went to, as in "5.6 s of it waiting for a batch"."""


class SlowSteps:
    """Compares each step with the median of the last ones.

    Args:
        times: how many times the median a slow step takes; it takes a second longer besides. None finds none.
    """

    def __init__(self, times: float | None) -> None:
        self._times = times
        self._turns: deque[Turn] = deque(maxlen=LAST)

    def add(self, turn: Turn) -> SlowStep | None:
        """Take in a step; it counts among the ones before the next, so that a pace that stays is slow no longer."""
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
        return SlowStep(turn.seconds, median, f"{getattr(turn, worst):.3g} s of it {PLACES[worst]}")

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
    """What most of the difference went to, as in "0.6 s of it waiting for the devices"."""


class Pace:
    """Compares the median of every `STRETCH` steps with the fastest there was.

    Args:
        times: how many times the fastest a slow one is; a stretch loses a second besides. None finds none.
    """

    def __init__(self, times: float | None) -> None:
        self._times = times
        self._turns: list[Turn] = []
        self._best: dict[str, float] | None = None

    def add(self, turn: Turn) -> SlowPace | None:
        """Take in a step; what there is to say of the stretch that it ends."""
        self._turns.append(turn)
        if self._times is None or len(self._turns) < STRETCH:
            return None
        now = {name: _median(self._turns, name) for name in ("seconds", *PLACES)}
        self._turns = []
        if self._best is None or now["seconds"] <= self._best["seconds"]:
            self._best = now
            return None
        seconds, best = now["seconds"], self._best
        if seconds <= self._times * best["seconds"] or (seconds - best["seconds"]) * STRETCH <= SECONDS:
            return None
        worst = max(PLACES, key=lambda name: now[name] - best[name])
        return SlowPace(STRETCH, seconds, best["seconds"], f"{now[worst]:.3g} s of it {PLACES[worst]}")


def _median(turns: Iterable[Turn], name: str) -> float:
    return float(np.median([getattr(turn, name) for turn in turns]))


@dataclass
class Losses:
    """Time that devices lost because the host came late, in seconds, over a number of steps."""

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
