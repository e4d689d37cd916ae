"""How far a measured step is from its prediction, and what one measured run of a system changes about that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from pathlib import Path
from statistics import fmean

import numpy as np

FREEDOM = 3
"""Degrees of freedom of what the runs of a system share: few, since ten systems decide its spread, one of which is far
off."""

GRID = 1001
"""Points of an integral."""

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
    shares: float = 0.0
    """Standard deviation of what a prediction is off where one compiled program alone shows how long some messages are
    waited for (`search.share_spread`)."""

    def interval(self, seconds: float) -> tuple[float, float]:
        """The least and the greatest time of a step that is predicted to take `seconds` (with the shift), in
        `SHARE` of the runs."""
        width = exp(self.quantile * sqrt(self.between**2 + self.within**2 + self.shares**2))
        return seconds / width, seconds * width

    def holds(self, measured: float, seconds: float) -> bool:
        """Whether a measured step is inside the interval."""
        low, high = self.interval(seconds)
        return low <= measured <= high

    def measured(self, errors: Sequence[float]) -> Spread:
        """The spread after runs of the system were measured: logarithms of measured over predicted seconds, predicted
        with no shift."""
        return self.after(errors)[0]

    def after(self, errors: Sequence[float]) -> tuple[Spread, float]:
        """The same, and how likely those errors were (a logarithm, to compare with that of another prediction).

        What runs share is from Student's distribution with `FREEDOM` degrees, not from a normal one: most systems are
        near their prediction and one in ten is not, so that a run which is far off says more about its system than
        about itself. Runs beside it are normal. Integrated over a grid.
        """
        if not errors:
            return self, 0.0
        mean, own = fmean(errors), self.within / sqrt(len(errors))
        ends = (min(self.shift, mean), max(self.shift, mean))
        shared = np.linspace(ends[0] - 6 * own, ends[1] + 6 * own, GRID)
        likely = -(FREEDOM + 1) / 2 * np.log1p(((shared - self.shift) / self.between) ** 2 / FREEDOM)
        likely = likely - 0.5 * ((mean - shared) / own) ** 2
        weights = np.exp(likely - likely.max())
        shift = float(np.average(shared, weights=weights))
        variance = float(np.average((shared - shift) ** 2, weights=weights))
        evidence = float(likely.max() + np.log(weights.sum() * (shared[1] - shared[0])))
        evidence -= 0.5 * sum(((error - mean) / self.within) ** 2 for error in errors)
        return replace(self, shift=shift, between=sqrt(variance)), evidence

    @property
    def factor(self) -> float:
        """Seconds of this system over those predicted without its shift."""
        return exp(self.shift)


RESIDUALS = Path(__file__).parent / "residuals.json"
"""Spreads of published runs around predictions that nothing of their system was fitted to (docs/planner.md, How good
the predictions are); `python -m benchmarks.validation --write` writes it."""


def residual_spread(software: str) -> Spread:
    """The spread of a row of `RESIDUALS`."""
    return Spread(**json.loads(RESIDUALS.read_text(encoding="utf-8"))["spreads"][software])


KNOWN = residual_spread("known")
"""Software whose mechanisms are known, as jaxpar's are: from each source, predicted from all the others."""

ONE_PROGRAM = 0.284
"""How far shares of messages that are waited for are from those of one other compiled program of their class, as a
standard deviation: `KNOWN.quantile` of it hold `SHARE` of the programs of classes with several, each beside the others
of its class (`benchmarks.planner.compiled`)."""

NOMINAL = Spread(between=0.7, within=0.1)
"""CPUs, whose numbers are nominal: nothing is known before a run was measured."""


def overlap(first: float, second: float, spread: Spread = KNOWN) -> bool:
    """Whether the intervals of two predictions of one system overlap, which share what its runs share."""
    alone = replace(spread, between=0.0)
    fast, slow = sorted((first, second))
    return alone.interval(fast)[1] >= alone.interval(slow)[0]
