"""The report of a file of published runs: errors by source and by size, what rows leave open, what software does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.validation.aligned import aligned
from benchmarks.validation.errors import Errors, errors_of
from benchmarks.validation.judged import Judged
from benchmarks.validation.mechanisms import Software
from benchmarks.validation.naive import naive, naive_beside_a_run
from benchmarks.validation.predict import judge
from benchmarks.validation.published import PUBLISHED, Refused, Run, read_rows, read_runs
from benchmarks.validation.sizes import HEAD, SizeErrors, by_size, cells
from benchmarks.validation.software import switches
from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.units import percent, plural


@dataclass(frozen=True)
class Used:
    """Mechanisms assumed for the software of some rows."""

    software: str
    """The generation that its name stands for; of software that is not known, one of those that it may be."""
    rows: int
    mechanisms: Mechanisms
    stated: str
    """Properties that the rows state; the rest follows from the name."""


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
        """Settings that rows leave open, a line for each source; empty where there are none."""
        if not self.assumed:
            return []
        each = lambda found: "; ".join(f"{what} ({rows})" for what, rows in found.items())
        return ["", "Assumed for what rows leave open:"] + [f"  {k}: {each(v)}" for k, v in self.assumed.items()]

    def software(self) -> list[str]:
        """The mechanisms of each source's software; nothing where nothing was timed."""
        if not self.mechanisms:
            return []
        usual = Software()
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
    sources = {name: errors_of(rows, guessed.get(name), beside.get(name)) for name, rows in by_source.items()}
    opened = {name: dict(Counter(what for row in rows for what in row.run.assumed)) for name, rows in by_source.items()}
    each = list(sources.values())
    over = lambda name: [getattr(errors, name) for errors in each]
    means: dict[str, Any] = {one.name: _mean(over(one.name)) for one in fields(Errors)}
    overall = Errors(**means | {name: sum(over(name)) for name in ("rows", "memory_rows")})
    opened = {name: found for name, found in opened.items() if found}
    used = {name: found for name, rows in by_source.items() if (found := _used(rows))}
    return Report(overall, sources, opened, refused, by_size(judged), used)


def _used(rows: Sequence[Judged]) -> list[Used]:
    """Mechanisms assumed for the software of the rows that were timed."""
    runs = [row.run for row in rows if row.time is not None]
    each = Counter((name, run.stated, does) for run in runs for name, does in run.candidates.items())
    return [Used(name, number, does, stated) for (name, stated, does), number in each.items()]


def validate(path: Path | str, hardware: Callable[[Run], HardwareModel | None] | None = None) -> Report:
    """Predict every run of a CSV file and compare; rows that cannot be timed are listed with the reason.

    Args:
        path: a file with the columns of `jaxpar/planner/measured_runs/table.py`.
        hardware: parameters to use instead of those fitted for the GPU of a run.

    Raises:
        UserError: the file cannot be read, a column is missing, or no row can be compared; one sentence.
    """
    found, refused = read_rows(Path(path))
    runs = [run for run in found if run.tokens_per_s_per_gpu is not None or run.peak_gib is not None]
    if not runs:
        why = f"; {refused[0].row}: {refused[0].why}" if refused else ""
        raise UserError(f"{named(Path(path))}: no row has a time or a peak memory to compare with{why}")
    judged = [judge(run, hardware(run) if hardware else None) for run in runs]
    return report(judged, refused, _published())


@cache
def _published() -> Sequence[Run]:
    """The runs of the repository, for naive guesses beside predictions."""
    return read_runs(PUBLISHED)


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
