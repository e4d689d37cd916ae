"""How far a measured step is from its prediction, and what measured runs of a system change about that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Annotated

from jaxpar.hardware.sources import assumed, chosen, measured

SHARE: Annotated[float, chosen("the width of intervals")] = 0.8
"""Share of measured steps that an interval holds."""

RESIDUALS = Path(__file__).parent / "residuals.json"
"""How far published runs are from predictions: each system's in turn, left out (docs/prediction-errors.md). `python -m
benchmarks.validation --write` writes it."""


@dataclass(frozen=True)
class Spread:
    """The logarithm of measured over predicted seconds; a system is its software on its GPUs."""

    alone: float
    """`SHARE` of the runs of a system of which nothing was measured are so close to their prediction."""
    beside: float
    """The same where another of its runs was measured: no number of runs makes an interval narrower than that."""
    shared: float
    """Part of the variance that all runs of a system share."""
    runs: int = 0
    """Runs of the system that were measured."""
    shift: float = 0.0
    """The logarithm of measured over predicted seconds that these show."""

    @property
    def factor(self) -> float:
        """Seconds of this system over those predicted without its shift."""
        return exp(self.shift)

    @property
    def width(self) -> float:
        """Half of the interval."""
        return self.beside if self.runs else self.alone

    def interval(self, seconds: float) -> tuple[float, float]:
        """The least and the greatest time of a step that is predicted to take `seconds` (with the shift), in
        `SHARE` of the runs."""
        return seconds / exp(self.width), seconds * exp(self.width)

    def measured(self, errors: Sequence[float]) -> Spread:
        """The spread after runs of the system were measured: logarithms of measured over predicted seconds. The fewer
        they are, the more of their mean is what each has alone."""
        if not errors:
            return self
        known = self.shared / (self.shared + (1 - self.shared) / len(errors))
        return replace(self, runs=len(errors), shift=known * fmean(errors))

    def alike(self, first: float, second: float) -> bool:
        """Whether either of two runs of one system, which are predicted to take so long, may be the faster."""
        return abs(log(first / second)) <= self.beside


PUBLISHED: Annotated[
    Spread, measured("python -m benchmarks.validation --write: published runs, each system left out")
] = Spread(**json.loads(RESIDUALS.read_text(encoding="utf-8"))["spread"])
"""The spread of plans on GPUs: jaxpar has not been timed on a cluster, and is taken to be one system more."""

NOMINAL: Annotated[Spread, assumed("no run on CPUs is published")] = Spread(alone=0.9, beside=0.2, shared=0.98)
"""CPUs, whose numbers are nominal: nothing is known before a run was measured."""
