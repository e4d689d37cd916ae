"""Errors of predictions against published runs, per source and overall.

Errors are of tokens/s/GPU and of peak memory, relative to the measurement; those without a sign are absolute. Overall
figures are means over sources, because two sources hold most rows. Rank correlation (Spearman) is within the runs of
one model and sequence length, where there are three or more; pairs in order are those of the same runs that differ by
more than `APART`. Regret is how much slower the layout predicted to be best is than the fastest measured one, among the
layouts of one model, batch and cluster; the median over such groups. Coverage is the share of runs inside the interval
of their prediction. What is anchored is each run beside each other one of its source and software. Naive is the
guess of one share of the peak (`naive`), without and with that other run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import log
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from benchmarks.validation.judged import Judged
from benchmarks.validation.posterior import posterior
from jaxpar.planner.step_time.interval import KNOWN, Spread

APART = 0.05
"""Runs whose speeds differ by less count in no pair."""


class Anchored(NamedTuple):
    """A run, predicted where another of its system was measured."""

    error: float
    """Like `Judged.error`."""
    covered: bool
    """Whether the measured time is inside the interval."""


def anchored(rows: Sequence[Judged], prior: Spread = KNOWN) -> list[Anchored]:
    """Each run beside each other run of the same source and software as an anchor; `prior` is the spread of software
    that is known."""
    groups: dict[Hashable, list[Judged]] = defaultdict(list)
    for one in rows:
        if one.errors:
            groups[one.run.source, one.run.software].append(one)
    found = []
    for group in groups.values():
        after = [posterior([one.errors], prior) for one in group]
        for anchor, other in permutations(range(len(group)), 2):
            each, seconds = group[other].each, group[other].run.seconds or 0.0
            predicted = after[anchor].seconds(each)
            found.append(Anchored(seconds / predicted - 1, after[anchor].spread(each).holds(seconds, predicted)))
    return found


@dataclass(frozen=True)
class Errors:
    """Errors of a source, or means over sources; None where nothing of the kind was measured."""

    rows: int
    median_error: float | None
    p90_error: float | None
    memory_rows: int
    memory_median_error: float | None
    rank_correlation: float | None
    regret: float | None
    bias: float | None = None
    """Median of the errors with their sign: above 0 where runs were slower than predicted."""
    memory_bias: float | None = None
    coverage: float | None = None
    """Share of the rows inside the interval of their prediction."""
    pairs_in_order: float | None = None
    """Share of the pairs of layouts of one model that are predicted in the measured order."""
    anchored_median_error: float | None = None
    """Where one other run of the source, of the same software, was measured."""
    anchored_coverage: float | None = None
    """The same of `coverage`."""
    naive_median_error: float | None = None
    """Errors of one share of the peak for each kind of GPU, the median of other sources."""
    anchored_naive_median_error: float | None = None
    """Errors of the share that another run of the source, of the same software, reached."""


def errors_of(
    rows: Sequence[Judged], guessed: Sequence[float] | None, guessed_beside: Sequence[float] | None
) -> Errors:
    """The errors of a source, beside those of the naive guess."""
    signed = [error for row in rows if (error := row.error) is not None]
    held = [error for row in rows if (error := row.memory_error) is not None]
    covered = [inside for row in rows if (inside := row.covered) is not None]
    errors, memory = [abs(error) for error in signed], [abs(error) for error in held]
    beside = anchored(rows)
    return Errors(
        rows=len(errors),
        median_error=median(errors) if errors else None,
        p90_error=float(np.percentile(errors, 90)) if errors else None,
        memory_rows=len(memory),
        memory_median_error=median(memory) if memory else None,
        rank_correlation=_over_groups(rows, _same_model, 3, _spearman, fmean),
        regret=_over_groups(rows, lambda row: row.run.group, 2, _regret, median),
        bias=median(signed) if signed else None,
        memory_bias=median(held) if held else None,
        coverage=fmean(covered) if covered else None,
        pairs_in_order=_over_groups(rows, _same_model, 2, _in_order, fmean),
        anchored_median_error=median(abs(one.error) for one in beside) if beside else None,
        anchored_coverage=fmean(one.covered for one in beside) if beside else None,
        naive_median_error=median(map(abs, guessed)) if guessed else None,
        anchored_naive_median_error=median(map(abs, guessed_beside)) if guessed_beside else None,
    )


def _same_model(row: Judged) -> Hashable:
    return (*row.run.group[:1], row.run.sequence, row.run.shape)


def _over_groups(
    rows: Sequence[Judged],
    key: Callable[[Judged], Hashable],
    least: int,
    measure: Callable[[list[float], list[float]], float | None],
    middle: Callable[[list[float]], float],
) -> float | None:
    """`measure` of (predicted, measured) speeds of every group with `least` rows or more, and their `middle`."""
    groups: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.time is not None and row.run.tokens_per_s_per_gpu is not None:
            groups[key(row)].append((row.time.tokens_per_s_per_gpu, row.run.tokens_per_s_per_gpu))
    each = [measure([p for p, _ in group], [m for _, m in group]) for group in groups.values() if len(group) >= least]
    found = [value for value in each if value is not None]
    return middle(found) if found else None


def _spearman(predicted: list[float], measured: list[float]) -> float:
    """Rank correlation; 0 where all values of one side are equal."""
    a, b = _ranks(predicted), _ranks(measured)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: list[float]) -> np.ndarray:
    """Ranks from 0; equal values share the mean of theirs."""
    array = np.array(values)
    return np.array([(array < value).sum() + ((array == value).sum() - 1) / 2 for value in array])


def _regret(predicted: list[float], measured: list[float]) -> float:
    """The share of the best measured speed that the layout predicted to be best does not reach."""
    return 1 - measured[int(np.argmax(predicted))] / max(measured)


def _in_order(predicted: list[float], measured: list[float]) -> float | None:
    """Share in the predicted order, of the pairs whose measured speeds are `APART`; None without such a pair."""
    pairs = [
        (predicted[a] > predicted[b]) == (measured[a] > measured[b])
        for a, b in combinations(range(len(measured)), 2)
        if abs(log(measured[a] / measured[b])) > log(1 + APART)
    ]
    return fmean(pairs) if pairs else None
