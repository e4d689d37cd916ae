"""How good predictions are: the parts of docs/planner.md, their picture, and tables that are only printed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from benchmarks.planner.memory import PAGE, with_table
from benchmarks.validation.cases import published_cases
from benchmarks.validation.collectives import read_collectives
from benchmarks.validation.fit import CURRENT, REFITTED, Behind, alone, behind, refit, slopes
from benchmarks.validation.judged import Judged
from benchmarks.validation.leave_out import LeftOut, generations_left_out, left_out, sources_left_out
from benchmarks.validation.plot import bars_of, scatter
from benchmarks.validation.published import HELD_OUT, PUBLISHED, read_runs
from benchmarks.validation.report import Report, report
from benchmarks.validation.residuals import residuals_text
from benchmarks.validation.tables import (
    behind_table,
    cited_table,
    collectives_table,
    errors_table,
    fitted_values,
    left_out_table,
    neighbours,
    order_table,
    parameters_table,
    sizes_table,
    spread_table,
    wrapped,
)
from jaxpar.planner.step_time.interval import RESIDUALS
from jaxpar.units import percent

PICTURE = PAGE.parent / "images" / "planner-errors.png"
FIRST, TABLES, CASES = "benchmarks.validation.leave_out", "benchmarks.validation", "benchmarks.validation.cases"
"""The parts of the page."""


def validation(*, cases: bool = False, write: bool = False) -> str:
    """The parts of the page, and the tables that are only printed.

    Args:
        cases: plan the papers' models too.
        write: write the page, its picture, and the table from which the planner's intervals follow.
    """
    everything = read_runs(PUBLISHED)
    runs = [run for run in everything if run.tokens_per_s_per_gpu is not None]
    memory = [run for run in everything if run.tokens_per_s_per_gpu is None and run.peak_gib is not None]
    known, fitted = slopes(runs, CURRENT), CURRENT.judge(runs)
    unseen = left_out(runs, sources_left_out(known), generations_left_out(known))
    held = CURRENT.judge(read_runs(HELD_OUT))
    parts = {FIRST: _first(unseen)}
    joined = lambda judged: [one for own in judged.values() for one in own]
    deciding = alone(behind(known))
    without = sources_left_out(known, neutral=True, only=deciding)
    reports = {
        "one source left out, no priors": report(joined(dict(unseen.sources) | without)),
        "never fitted": report(held),
    }
    found = refit(runs, CURRENT, REFITTED)
    print(fitted_values(found), file=sys.stderr, flush=True)
    again = report(found.judge(runs)).overall.median_error or 0
    parts[TABLES] = [
        "### What a GPU reaches", "", *parameters_table(CURRENT), "",
        f"Refitted, the median over sources is {percent(again)}. No run was at hand on some GPUs, whose shares are "
        f"those of a neighbour: {neighbours()}.", "",
        "### Collectives", "", *_collectives(), "",
    ]  # fmt: skip
    if cases:
        parts[CASES] = published_cases()
    texts = {name: "\n".join(wrapped(lines)) for name, lines in parts.items()}
    if write:
        RESIDUALS.write_text(residuals_text({"known": unseen.known, "unknown": unseen.unknown}))
        scatter(_panels(fitted, unseen, held), bars_of(unseen), PICTURE)
        page = PAGE.read_text()
        for name, text in texts.items():
            marks = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
            page = with_table(page, text.strip().splitlines(), marks)
        PAGE.write_text(page)
    printed = _printed(unseen, behind(known), reports, deciding, [*fitted, *CURRENT.judge(memory)])
    return "\n\n".join([*texts.values(), "\n".join(wrapped(printed))])


def _first(found: LeftOut) -> list[str]:
    """The first table: errors on systems that nothing was fitted to, beside the naive guess."""
    return [
        *left_out_table(found), "",
        f"![Errors of predictions by measured speed]({PICTURE.relative_to(PAGE.parent)})", "",
        *spread_table(found), "",
    ]  # fmt: skip


def _printed(
    unseen: LeftOut, rows: Behind, reports: Mapping[str, Report], deciding: Sequence[str], in_sample: Sequence[Judged]
) -> list[str]:
    """Tables that the page leaves out."""
    return [
        "Runs of each source inside their interval, and pairs of its layouts more than 5% apart that are predicted in "
        "the order that was measured (-: no such pair):", "",
        *order_table(unseen), "",
        "By number of GPUs, and of the runs whose tensor ranks are on several hosts (each row counts the same here; "
        "*over sources* is the mean of their biases):", "",
        *sizes_table(unseen), "",
        "Rows whose prediction moves by 0.1% or more when a parameter moves by a tenth, and their sources. A parameter "
        "that one source alone decides begins at what others measured of the kernels alone, and stays there when that "
        "source is left out:", "",
        *behind_table(rows, CURRENT), "",
        *errors_table(reports), "",
        "No priors: those parameters begin, and stay, in the middle of their ranges instead, for the sources that "
        f"alone decide one ({', '.join(deciding)}).", "",
        "In sample, with one run measured (anchored), the choice among measured layouts, and memory by Megatron's "
        "closed form (`memory/closed_forms.py`):", "",
        "```", *report(in_sample).table(), "```", "",
        "Single numbers that reports of nccl-tests state, of 8 GiB where they name no size (issues of NVIDIA/nccl and "
        "NVIDIA/nccl-tests; none whose maintainers found a fault). Where cards are not stated, 8 of 400 Gb/s are "
        "assumed:", "",
        *cited_table(read_collectives()),
    ]  # fmt: skip


def _collectives() -> list[str]:
    """All-reduces that were measured alone, beside the model's."""
    return [
        "All-reduces in one host (VIA-Research/vTrain; `benchmarks/validation/data/collectives.csv`, which has single "
        "numbers of nccl-tests too); errors of seconds, above 0 where the model is too slow:", "",
        *collectives_table(read_collectives()),
    ]  # fmt: skip


def _panels(fitted: Sequence[Judged], unseen: LeftOut, held: Sequence[Judged]) -> dict[str, list[Judged]]:
    joined = lambda judged: [one for own in judged.values() for one in own]
    return {
        "in sample": list(fitted),
        "leave one source out": joined(unseen.sources),
        "leave one generation of software out, timed as unknown": joined(unseen.generations),
        "never fitted": list(held),
    }
