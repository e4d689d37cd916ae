"""A table of docs/prediction-errors.md, and the residuals from which the planner's intervals follow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from statistics import fmean, median

from benchmarks.validation.collectives import collectives_table
from benchmarks.validation.leave_out import LeftOut, by_source, left_out, mean_of, spread_of
from benchmarks.validation.mechanisms import EAGER, FLASH1, STATED, SYSTEMS
from benchmarks.validation.published import FILES, Refused, Run, read_runs
from jaxpar.config import UserError
from jaxpar.cost.hardware_model import AMPERE, HOPPER
from jaxpar.pages.units import percent
from jaxpar.planner.step_time.interval import RESIDUALS, Spread

PAGE = Path(__file__).parents[2] / "docs" / "prediction-errors.md"
MARKS = "<!-- benchmarks.validation: begin -->", "<!-- benchmarks.validation: end -->"
"""The marks between which the page has the tables."""
NAIVE = "baseline error", "baseline error after a run"
OURS = "error", "bias", "error after a run", "inside", "inside after a run"


def everything() -> tuple[list[Run], list[Refused]]:
    """All published runs, and the rows that cannot be timed."""
    files = [read_runs(file) for file in FILES]
    return [run for runs, _ in files for run in runs], [one for _, refused in files for one in refused]


def inputs() -> str:
    """A hash of what the residuals follow from: the published runs, what GPUs reach, and how software differs."""
    data = b"".join(file.read_bytes() for file in FILES)
    return sha256(data + repr((AMPERE, HOPPER, SYSTEMS, STATED, EAGER, FLASH1)).encode()).hexdigest()


def validation(*, write: bool = False) -> list[str]:
    """The tables of the page; `write` also writes them, and the residuals."""
    runs, refused = everything()
    sources = by_source(runs)
    spread = spread_of(sources)
    lines = [*sources_table(left_out(sources)), "", spread_line(spread)]
    if write:
        rounded = {name: round(value, 3) for name, value in asdict(spread).items() if name not in ("runs", "shift")}
        written_by = "python -m benchmarks.validation --write"
        text = json.dumps({"written_by": written_by, "inputs": inputs(), "spread": rounded}, indent=2)
        RESIDUALS.write_text(text + "\n")
        PAGE.write_text(with_table(PAGE.read_text(), lines))
    return [*lines, *refusals(refused), "", *collectives_table()]


def with_table(page: str, lines: Sequence[str]) -> str:
    """The page with these lines between its marks. Raises `UserError` where it has not one pair of them."""
    before, begin, rest = page.partition(MARKS[0])
    old, end, after = rest.partition(MARKS[1])
    if not (begin and end) or begin in old + after or end in before + after:
        raise UserError(f"{PAGE.name}: expected {MARKS[0]} and, after it, {MARKS[1]}, each once")
    return "\n".join([before + begin, "", *lines, "", end + after])


def sources_table(found: Mapping[str, LeftOut]) -> list[str]:
    """By source: medians of absolute errors, the naive guess's first, and how many runs are inside their interval."""
    lines = [f"| source | runs | {' | '.join((*NAIVE, *OURS))} |", "|---" * (2 + len(NAIVE) + len(OURS)) + "|"]
    for name, one in found.items():
        errors = one.errors
        cells = [
            _middle(one.naive), _middle(one.naive_beside), _middle(errors), f"{100 * median(errors):+.1f}%",
            _middle(one.beside), _whole(one.coverage), _whole(one.coverage_beside),
        ]  # fmt: skip
        lines.append(f"| {name} | {len(errors)} | {' | '.join(cells)} |")
    of = (lambda one: one.naive), (lambda one: one.naive_beside), (lambda one: one.errors), (lambda one: one.beside)
    naive, naive_beside, error, beside = (percent(mean_of(found, each)) for each in of)
    bias = fmean(median(one.errors) for one in found.values())
    covered = fmean(one.coverage for one in found.values())
    covered_beside = fmean(own for one in found.values() if (own := one.coverage_beside) is not None)
    means = naive, naive_beside, error, f"{100 * bias:+.1f}%", beside, _whole(covered), _whole(covered_beside)
    rows = sum(len(one.runs) for one in found.values())
    return [*lines, f"| **mean over sources** | {rows} | {' | '.join(means)} |"]


def spread_line(spread: Spread) -> str:
    """The interval of a plan, of all sources."""
    after = Spread(spread.alone, spread.beside, spread.shared, runs=1)
    alone, beside = (
        f"-{percent(1 - low)} to +{percent(high - 1)}"
        for low, high in (spread.interval(1.0), after.interval(1.0))
    )  # fmt: skip
    return f"Intervals of plans: {alone}; after a measured run {beside}."


def refusals(refused: Sequence[Refused]) -> list[str]:
    """Rows that cannot be timed."""
    return ["", *(f"Left out: {one.row}: {one.why}." for one in refused)] if refused else []


def _middle(errors: Sequence[float]) -> str:
    return percent(median(map(abs, errors))) if errors else "-"


def _whole(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"
