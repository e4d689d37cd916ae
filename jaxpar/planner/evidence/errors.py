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

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import combinations, permutations
from math import log
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.planner.evidence.judged import Judged
from jaxpar.planner.evidence.naive import naive, naive_beside_a_run
from jaxpar.planner.evidence.posterior import posterior
from jaxpar.planner.evidence.published import Refused, Run
from jaxpar.planner.evidence.sizes import HEAD, SizeErrors, by_size, cells
from jaxpar.planner.evidence.software import switches
from jaxpar.planner.step_time.interval import KNOWN, Spread
from jaxpar.units import percent, plural

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
    """Of pairs of layouts of one model, the share that is predicted in the order that was measured."""
    anchored_median_error: float | None = None
    """Where one other run of the source, of the same software, was measured."""
    anchored_coverage: float | None = None
    """The same of `coverage`."""
    naive_median_error: float | None = None
    """Of one share of the peak for each kind of GPU, the median of other sources."""
    anchored_naive_median_error: float | None = None
    """Of the share that another run of the source, of the same software, reached."""


@dataclass(frozen=True)
class Used:
    """What the software of some rows is taken to do."""

    software: str
    """The generation that its name stands for; of software that is not known, one of those that it may be."""
    rows: int
    mechanisms: Mechanisms
    stated: str
    """What the rows state of it; the rest follows from the name."""


@dataclass(frozen=True)
class Report:
    """The result of a validation."""

    overall: Errors
    sources: Mapping[str, Errors]
    assumed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By source: what its rows leave open, the value assumed for it, and in how many rows."""
    refused: Sequence[Refused] = ()
    """Rows that cannot be timed."""
    sizes: Mapping[str, SizeErrors] = field(default_factory=dict)
    """By size of the run."""
    mechanisms: Mapping[str, Sequence[Used]] = field(default_factory=dict)
    """By source: what its software is taken to do."""

    def as_json(self) -> dict[str, Any]:
        """`overall` and `sources`, each with the fields of `Errors`; `sizes`, with those of `SizeErrors`; `assumed`;
        `mechanisms`, with the fields of `Used`; and `refused`, with the reasons."""
        sources = {name: vars(errors) for name, errors in self.sources.items()}
        refused = [vars(one) for one in self.refused]
        sizes = {name: vars(errors) for name, errors in self.sizes.items()}
        used = {name: [asdict(one) for one in own] for name, own in self.mechanisms.items()}
        return {
            "overall": vars(self.overall), "sources": sources, "sizes": sizes, "assumed": self.assumed,
            "mechanisms": used, "refused": refused,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Tables by source and by size, the rows that cannot be timed, and what is assumed of the others."""
        left_out = [f"  {one.row}: {one.why}" for one in self.refused]
        rows = plural(len(left_out), "row")
        refused = ["", f"{rows} cannot be timed:", *left_out] if left_out else []
        return [*self.table(), *self.size_table(), *refused, *self.assumptions(), *self.software()]

    def assumptions(self) -> list[str]:
        """What rows leave open, a line for each source; nothing where nothing is."""
        if not self.assumed:
            return []
        each = lambda found: "; ".join(f"{what} ({rows})" for what, rows in found.items())
        return ["", "Assumed for what rows leave open:"] + [f"  {k}: {each(v)}" for k, v in self.assumed.items()]

    def software(self) -> list[str]:
        """The mechanisms of each source's software; nothing where nothing was timed."""
        if not self.mechanisms:
            return []
        usual = Mechanisms()
        lines = [
            "",
            "Taken to be done by software of that name, where rows do not state it (all else as in the last line):",
        ]
        for source, own in self.mechanisms.items():
            for one in own:
                stated = f" (stated: {one.stated})" if one.stated else ""
                own_words = switches(one.mechanisms, usual) or "all as usual"
                lines.append(f"  {source}: {one.software} ({one.rows}): {own_words}{stated}")
        return [*lines, f"  usual: {switches(usual)}"]

    def table(self) -> list[str]:
        """A line for each source, and one for all."""
        head = (
            "source", "rows", "median", "naive", "p90", "bias", "inside", "anchored", "naive", "memory", "median",
            "bias", "rank", "pairs", "regret",
        )  # fmt: skip
        rows = [(name, errors) for name, errors in self.sources.items()] + [("mean over sources", self.overall)]
        return aligned([head, *((name, *_cells(errors)) for name, errors in rows)])

    def size_table(self) -> list[str]:
        """A line for each class of sizes, after an empty one; nothing without a time."""
        return ["", *aligned([HEAD, *cells(self.sizes)])] if self.sizes else []


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = lambda row: [cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(row)]
    return ["  ".join(padded(zip(row, widths, strict=True))) for row in rows]


def report(judged: Iterable[Judged], refused: Sequence[Refused] = (), known: Iterable[Run] = ()) -> Report:
    """The errors of predictions, by source.

    Args:
        judged: the predictions.
        refused: the rows that have none.
        known: runs of other sources, for the naive guess beside them.
    """
    by_source: dict[str, list[Judged]] = defaultdict(list)
    judged = list(judged)
    for one in judged:
        by_source[one.run.source].append(one)
    timed = [one.run for one in judged if one.time is not None]
    guessed, beside = naive(timed, known), naive_beside_a_run(timed)
    sources = {name: _errors(rows, guessed.get(name), beside.get(name)) for name, rows in by_source.items()}
    opened = {name: dict(Counter(what for row in rows for what in row.run.assumed)) for name, rows in by_source.items()}
    each = list(sources.values())
    over = lambda name: [getattr(errors, name) for errors in each]
    means: dict[str, Any] = {one.name: _mean(over(one.name)) for one in fields(Errors)}
    overall = Errors(**means | {name: sum(over(name)) for name in ("rows", "memory_rows")})
    opened = {name: found for name, found in opened.items() if found}
    used = {name: found for name, rows in by_source.items() if (found := _used(rows))}
    return Report(overall, sources, opened, refused, by_size(judged), used)


def _used(rows: Sequence[Judged]) -> list[Used]:
    """What the software of the rows that were timed is taken to do."""
    runs = [row.run for row in rows if row.time is not None]
    each = Counter((name, run.stated, does) for run in runs for name, does in run.candidates.items())
    return [Used(name, number, does, stated) for (name, stated, does), number in each.items()]


def _errors(rows: Sequence[Judged], guessed: Sequence[float] | None, guessed_beside: Sequence[float] | None) -> Errors:
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
    """Of pairs whose measured speeds are `APART`, the share in the predicted order; None without such a pair."""
    pairs = [
        (predicted[a] > predicted[b]) == (measured[a] > measured[b])
        for a, b in combinations(range(len(measured)), 2)
        if abs(log(measured[a] / measured[b])) > log(1 + APART)
    ]
    return fmean(pairs) if pairs else None


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def _cells(errors: Errors) -> tuple[str, ...]:
    shown = lambda value: "-" if value is None else percent(value)
    signed = lambda value: "-" if value is None else f"{'+' if value >= 0 else '-'}{percent(abs(value))}"
    whole = lambda value: "-" if value is None else f"{100 * value:.0f}%"
    rank = "-" if errors.rank_correlation is None else f"{errors.rank_correlation:.2f}"
    return (
        str(errors.rows), shown(errors.median_error), shown(errors.naive_median_error), shown(errors.p90_error),
        signed(errors.bias), whole(errors.coverage), shown(errors.anchored_median_error),
        shown(errors.anchored_naive_median_error), str(errors.memory_rows), shown(errors.memory_median_error),
        signed(errors.memory_bias), rank, whole(errors.pairs_in_order), shown(errors.regret),
    )  # fmt: skip
