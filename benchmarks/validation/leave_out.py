"""Published runs, predicted from the others: each source in turn, and each generation of software in turn.

A fit to a part of the runs uses the slopes at the fit to all; what is left out is then predicted in full.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log1p, sqrt
from statistics import fmean, median

from benchmarks.validation.errors import Anchored, anchored
from benchmarks.validation.fit import Slopes, as_unknown, fit
from benchmarks.validation.judged import Judged
from benchmarks.validation.naive import naive, naive_beside_a_run
from benchmarks.validation.published import Run
from jaxpar.planner.step_time.interval import SHARE, Spread

REACH = 0.3
"""Share of its range that a parameter may move when runs are left out."""


@dataclass(frozen=True)
class LeftOut:
    """Errors on systems that nothing was fitted to, by source."""

    naive: Mapping[str, Sequence[float]]
    """Of one constant share of the peak."""
    naive_anchored: Mapping[str, Sequence[float]]
    """Of the share of the peak that one run of the source reached, at its others of the same software."""
    sources: Mapping[str, Sequence[Judged]]
    """Of each source, predicted by the fit to all others, its software known."""
    generations: Mapping[str, Sequence[Judged]]
    """Of each generation, predicted by the fit to all others as software that is not known."""
    anchored: Mapping[str, Sequence[Anchored]]
    """Of `generations`, where one run of the source was measured."""
    anchored_sources: Mapping[str, Sequence[Anchored]]
    """Of `sources`, the same."""
    known: Spread
    """That of `sources`."""
    unknown: Spread
    """That of `generations`."""
    coverage: Mapping[str, float]
    """Share of the runs of `sources` that are inside their interval, which the others decide."""
    coverage_unknown: Mapping[str, float]
    """The same of `generations`."""


def left_out(
    runs: Sequence[Run], sources: Mapping[str, Sequence[Judged]], generations: Mapping[str, Sequence[Judged]]
) -> LeftOut:  # fmt: skip
    """The errors, spreads and coverages."""
    return LeftOut(
        naive(runs), naive_beside_a_run(runs), sources, generations,
        beside_a_run(generations, sources), beside_a_run(sources, sources),
        spread_of(sources), spread_of(generations),
        coverage_left_out(sources), coverage_left_out(generations),
    )  # fmt: skip


def sources_left_out(
    known: Slopes, *, neutral: bool = False, only: Sequence[str] | None = None
) -> dict[str, list[Judged]]:
    """Each source, predicted by the fit to all others, with the mechanisms of its software; `neutral` starts all
    priors in the middle of their ranges; `only` are the sources to leave out, None for each."""
    found = {}
    for name in only or sorted({run.source for run in known.runs}):
        others = fit(known, lambda run: run.source != name, neutral=neutral, reach=REACH)  # noqa: B023 (called here)
        found[name] = others.judge([run for run in known.runs if run.source == name])
    return found


def generations_left_out(known: Slopes) -> dict[str, list[Judged]]:
    """Each generation of software, predicted as software that is not known by the fit to all others; by source."""
    judged: dict[str, list[Judged]] = defaultdict(list)
    for name in sorted({run.software or "" for run in known.runs}):
        others = fit(known, lambda run: run.software != name, reach=REACH)  # noqa: B023 (called here)
        for one in others.judge(as_unknown([run for run in known.runs if run.software == name])):
            judged[one.run.source].append(replace(one, run=replace(one.run, software=name or None)))
    return dict(sorted(judged.items()))


def errors(judged: Sequence[Judged]) -> list[float]:
    """Logarithms of measured over predicted seconds."""
    return [log1p(one.error) for one in judged if one.error is not None]


def spread_of(sources: Mapping[str, Sequence[Judged]]) -> Spread:
    """The spread of sources: between them, of their medians around zero; within them, of their runs around these.

    Medians and percentiles in place of squares, so that odd rows do not decide; the quantile is the one at which the
    intervals hold `SHARE` of the runs, in the mean over sources.
    """
    own = {name: errors(judged) for name, judged in sources.items()}
    middles = {name: median(found) for name, found in own.items()}
    between = sqrt(fmean(middle**2 for middle in middles.values()))
    within = fmean(
        _percentile([abs(error - middles[name]) for error in found], 0.68)
        for name, found in own.items()
        if len(found) > 2
    )
    width = sqrt(between**2 + within**2)
    quantiles = sorted(step / 100 for step in range(80, 301))
    covered = lambda z: fmean(fmean(abs(error) <= z * width for error in found) for found in own.values())
    return Spread(between, within, quantile=next((z for z in quantiles if covered(z) >= SHARE), quantiles[-1]))


def coverage_left_out(sources: Mapping[str, Sequence[Judged]]) -> dict[str, float]:
    """By source: the share of its runs inside the intervals that the spread of all other sources gives."""
    found = {}
    for name, judged in sources.items():
        spread = spread_of({other: rows for other, rows in sources.items() if other != name})
        found[name] = fmean(spread.holds(exp(error), 1.0) for error in errors(judged))
    return found


def beside_a_run(
    judged: Mapping[str, Sequence[Judged]], sources: Mapping[str, Sequence[Judged]]
) -> dict[str, list[Anchored]]:
    """By source: its runs where another of them, of the same software, was measured, for each choice of that one. How
    far runs are from predictions by their own mechanisms is what all other sources show."""
    prior = {name: spread_of({other: rows for other, rows in sources.items() if other != name}) for name in judged}
    found = {name: anchored(rows, prior[name]) for name, rows in judged.items()}
    return {name: pairs for name, pairs in found.items() if pairs}


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
