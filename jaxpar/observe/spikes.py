"""Losses that jump: compared with the last ones by median and median deviation, which a few outliers do not move."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

DEVIATION = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""
SMALLEST_DEVIATION = 0.005
"""Least standard deviation, as a share of the median: losses that hardly change would make spikes of nothing."""


@dataclass(frozen=True)
class Spike:
    """A loss far above the ones before it, in nats per token."""

    loss: float
    median: float
    """Median of the losses before it."""
    losses: int
    """Number of losses that were compared."""
    deviations: float
    """Number of standard deviations by which the loss exceeds the median."""


class LossWindow:
    """The last losses, and whether the next one is a spike.

    Args:
        size: how many losses a new one is compared with; there must be a fifth of them at least.
        threshold: standard deviations above the median from which on a loss is a spike; None finds none.
    """

    def __init__(self, size: int, threshold: float | None, losses: Iterable[float] = ()) -> None:
        self._losses, self._fewest = deque(losses, maxlen=size), size // 5
        self._threshold = threshold

    def add(self, loss: float) -> Spike | None:
        """Take in a finite loss. A spike counts among the losses after it: a level that stays is no spike for long."""
        spike = self._compare(loss)
        self._losses.append(loss)
        return spike

    def _compare(self, loss: float) -> Spike | None:
        if self._threshold is None or len(self._losses) < self._fewest:
            return None
        before = np.fromiter(self._losses, np.float64)
        median = float(np.median(before))
        deviation = max(DEVIATION * float(np.median(np.abs(before - median))), SMALLEST_DEVIATION * abs(median))
        if not loss - median > self._threshold * deviation:
            return None
        return Spike(loss, median, len(before), (loss - median) / deviation if deviation else float("inf"))

    @property
    def losses(self) -> list[float]:
        """The losses that a checkpoint saves, so that a resumed run judges like an uninterrupted one."""
        return list(self._losses)
