"""How far a measured step is from its prediction, and what one measured run of a system changes about that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt

SHARE = 0.8
"""Share of measured steps that an interval holds."""


@dataclass(frozen=True)
class Spread:
    """The logarithm of measured over predicted seconds: what all runs of a system share, and what each has alone."""

    between: float
    """Standard deviation of what the runs of one system (its software on its cluster) share."""
    within: float
    """Standard deviation of what each run has alone."""
    shift: float = 0.0
    """What the runs of this system are known to share; 0 before one of them was measured."""
    quantile: float = 1.28
    """Standard deviations on each side that hold `SHARE` of the runs; 1.28 for a normal distribution."""

    def interval(self, seconds: float) -> tuple[float, float]:
        """The least and the greatest time of a step that is predicted to take `seconds` (with the shift), in
        `SHARE` of the runs."""
        width = exp(self.quantile * sqrt(self.between**2 + self.within**2))
        return seconds / width, seconds * width

    def holds(self, measured: float, seconds: float) -> bool:
        """Whether a measured step is inside the interval."""
        low, high = self.interval(seconds)
        return low <= measured <= high

    def measured(self, errors: Sequence[float]) -> Spread:
        """The spread after runs of the system were measured: logarithms of measured over predicted seconds, predicted
        with no shift. Normal distributions: each run counts by the inverse of its variance."""
        if not errors:
            return self
        own, prior = len(errors) / self.within**2, 1 / self.between**2
        shift = (sum(errors) / self.within**2 + self.shift * prior) / (own + prior)
        return replace(self, shift=shift, between=(own + prior) ** -0.5)

    @property
    def factor(self) -> float:
        """Seconds of this system over those predicted without its shift."""
        return exp(self.shift)


KNOWN = Spread(between=0.074, within=0.074, quantile=1.05)
"""Software whose mechanisms are known, on a system that nothing was fitted to: `benchmarks.planner` derives it from
each source, predicted from all the others (docs/planner.md, How good the predictions are)."""
UNKNOWN = Spread(between=0.121, within=0.145, quantile=1.13)
"""Software that is not known: the same, from each generation of software predicted as neutral software from the runs
of all the others."""

NOMINAL = Spread(between=0.7, within=0.1)
"""CPUs, whose numbers are nominal: nothing is known before a run was measured."""


def interval(seconds: float, spread: Spread = KNOWN) -> tuple[float, float]:
    """The least and the greatest time of a step that is predicted to take `seconds`, in eight of ten runs."""
    return spread.interval(seconds)


def overlap(first: float, second: float, spread: Spread = KNOWN) -> bool:
    """Whether the intervals of two predictions of one system overlap, which share what its runs share."""
    alone = replace(spread, between=0.0)
    fast, slow = sorted((first, second))
    return alone.interval(fast)[1] >= alone.interval(slow)[0]
