"""How far predictions are from published runs, each system in turn left out, and the spread of plans that follows.

A system is its software on its kind of GPU. Intervals of a source follow from the runs of all other software. Errors
are of seconds of a step, relative to the prediction, and means over sources of medians, because two sources hold most
rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import exp, expm1
from statistics import fmean, median, pvariance
from typing import NamedTuple

from benchmarks.validation.published import Run
from jaxpar.planner.step_time.interval import SHARE, Spread

type Sources = Mapping[str, Sequence[Run]]


class Pair(NamedTuple):
    """A run that was predicted after another of its system was measured."""

    measured: float
    """Logarithm of measured over predicted seconds of the other."""
    error: float
    """Its own."""


def by_source(runs: Iterable[Run]) -> Sources:
    """The runs by source, in order."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.source].append(run)
    return dict(sorted(found.items()))


def pairs_of(runs: Sequence[Run]) -> list[Pair]:
    """Each run beside each other one of its system."""
    return [
        Pair(a.error, b.error)
        for a, b in permutations(runs, 2)
        if (a.software, a.cluster.gpu.short) == (b.software, b.cluster.gpu.short)
    ]


def spread_of(sources: Sources) -> Spread:
    """The spread of sources: widths that hold `SHARE` of their runs, in the mean over sources, and the part of the
    variance that lies between them."""
    errors = [[run.error for run in runs] for runs in sources.values()]
    between, within = fmean(median(own) ** 2 for own in errors), fmean(map(pvariance, errors))
    spread = Spread(_width(errors), 0.0, between / (between + within))
    pairs = [pairs_of(runs) for runs in sources.values()]
    beside = [[_left(spread, pair) for pair in own] for own in pairs if own]
    return replace(spread, beside=_width(beside))


def _left(spread: Spread, pair: Pair) -> float:
    """Logarithm of measured over predicted seconds, after the other run."""
    return pair.error - spread.measured([pair.measured]).shift


def _width(errors: Sequence[Sequence[float]]) -> float:
    """The least half of an interval that holds `SHARE` of these, in the mean over sources."""
    inside = lambda width: fmean(fmean(abs(error) <= width for error in own) for own in errors)
    return next(width for step in range(1, 1000) if inside(width := step / 200) >= SHARE)


@dataclass(frozen=True)
class LeftOut:
    """A source beside the runs of all other software."""

    runs: Sequence[Run]
    others: Sources

    @cached_property
    def spread(self) -> Spread:
        """The errors of the other systems."""
        return spread_of(self.others)

    @property
    def errors(self) -> list[float]:
        """Relative errors of seconds."""
        return [expm1(run.error) for run in self.runs]

    @cached_property
    def beside(self) -> list[float]:
        """The same after one other run of the system; none where a source has one run of each."""
        return [expm1(_left(self.spread, pair)) for pair in pairs_of(self.runs)]

    @property
    def coverage(self) -> float:
        """Share of the runs inside their interval."""
        return fmean(_inside(error, self.spread.alone) for error in self.errors)

    @property
    def coverage_beside(self) -> float | None:
        """The same after one other run."""
        return fmean(_inside(error, self.spread.beside) for error in self.beside) if self.beside else None

    @property
    def naive(self) -> list[float]:
        """Errors of one share of the peak: the median of all other software on GPUs of the same generation."""
        return [
            median(median(shares) for runs in self.others.values() if (shares := _shares_like(run, runs)))
            / run.share_of_peak
            - 1
            for run in self.runs
        ]

    @property
    def naive_beside(self) -> list[float]:
        """Errors of the share of the peak that another run of the system reached."""
        pairs = ((a, b) for a, b in permutations(self.runs, 2) if a.software == b.software)
        return [a.share_of_peak / b.share_of_peak - 1 for a, b in pairs]


def _shares_like(run: Run, runs: Sequence[Run]) -> list[float]:
    """The shares of the peak of those on GPUs of the same generation."""
    kind = run.cluster.gpu.compute_capability
    return [one.share_of_peak for one in runs if one.cluster.gpu.compute_capability == kind]


def _inside(error: float, width: float) -> bool:
    return exp(-width) <= 1 + error <= exp(width)


def left_out(sources: Sources) -> dict[str, LeftOut]:
    """Each source beside those of other software."""
    software = {name: {run.software for run in runs} for name, runs in sources.items()}
    return {
        name: LeftOut(runs, {o: own for o, own in sources.items() if not software[o] & software[name]})
        for name, runs in sources.items()
    }


def mean_of(found: Mapping[str, LeftOut], of: Callable[[LeftOut], Sequence[float]]) -> float:
    """The mean over sources of the medians of absolute errors."""
    return fmean(median(map(abs, errors)) for one in found.values() if (errors := of(one)))
