"""The planner's time model against published runs: fits it, and writes tables and scatter plots to docs/planner.md.

    python -m benchmarks.planner                                      # tables on the screen
    python -m benchmarks.planner --write                              # and docs/planner.md, except the papers' cases
    python -m benchmarks.planner --write --cases                      # and those

What is fitted: `FITTED`, on the logarithm of predicted over measured tokens/s/GPU. Every source weighs the same,
whatever its number of rows; errors above `TOLERANCE` count by their size, not its square: odd rows do not decide.
Judged in four ways: by the rows it was fitted to; by each source in turn, fitted to all the others; by each generation
of software in turn, timed as software that is not known and fitted to all the others; and by runs of
jaxpar/planner/evidence/data/held_out.csv, which are never fitted to.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.planner.fit import CURRENT, REFITTED, alone, behind, refit, slopes
from benchmarks.planner.leave_out import (
    LeftOut,
    generations_left_out,
    left_out,
    sources_left_out,
)
from benchmarks.planner.plot import bars_of, scatter
from benchmarks.planner.tables import (
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
from jaxpar.cli import Parser, command
from jaxpar.planner.evidence.collectives import read_collectives
from jaxpar.planner.evidence.errors import report
from jaxpar.planner.evidence.judged import Judged
from jaxpar.planner.evidence.published import read_runs
from jaxpar.planner.evidence.validate import HELD_OUT, PUBLISHED
from jaxpar.units import percent

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "planner.md"
PICTURE = ROOT / "docs" / "images" / "planner-errors.png"
FIRST, TABLES, CASES = "benchmarks.planner.leave_out", "benchmarks.planner", "benchmarks.planner.cases"
"""The parts of the page."""


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.planner", __doc__)
    parser.add_argument("--data", type=Path, default=PUBLISHED, help="published runs (those of the repository)")
    parser.add_argument("--cases", action="store_true", help="plan the papers' models too, which takes minutes")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} and {PICTURE.name}")
    options = parser.parse_args(arguments)
    everything = read_runs(options.data)
    runs = [run for run in everything if run.tokens_per_s_per_gpu is not None]
    memory = [run for run in everything if run.tokens_per_s_per_gpu is None and run.peak_gib is not None]
    found = refit(runs, CURRENT, REFITTED)
    print(fitted_values(found), file=sys.stderr, flush=True)
    known = slopes(runs, CURRENT)
    fitted = CURRENT.judge(runs)
    sources, generations = sources_left_out(known), generations_left_out(known)
    deciding = alone(behind(known))
    without = sources_left_out(known, neutral=True, only=deciding)
    held = CURRENT.judge(read_runs(HELD_OUT))
    unseen = left_out(runs, sources, generations)
    parts = {FIRST: _first(unseen)}
    joined = lambda judged: [one for own in judged.values() for one in own]
    reports = {
        "leave one source out": report(joined(sources)),
        "the same, no priors": report(joined(sources | without)),
        "never fitted": report(held),
    }
    whole = report([*fitted, *CURRENT.judge(memory)])
    again = report(found.judge(runs)).overall.median_error or 0
    parts[TABLES] = [
        "### What a GPU reaches", "", *parameters_table(CURRENT), "",
        f"Refitted, the median over sources is {percent(again)}. No run was at hand on some GPUs, whose shares are "
        f"those of a neighbour: {neighbours()}.", "",
        "The table counts the rows whose prediction moves by 0.1% or more when a parameter moves by a tenth, and their "
        "sources. A parameter that one source alone decides begins at what others measured of the kernels alone, and "
        "stays there when that source is left out:", "",
        *behind_table(behind(known), CURRENT), "",
        "### Errors of tokens/s/GPU", "", *errors_table(reports), "",
        "No priors: those parameters begin, and stay, in the middle of their ranges instead, for the sources that "
        f"alone decide one ({', '.join(deciding)}).", "",
        "In sample, with one run measured (anchored), the choice among measured layouts, and memory "
        "(`jaxpar.plan validate`):", "",
        "```", *whole.table(), *whole.size_table(), "```", "",
        "Memory here is Megatron's closed form (`memory/closed_forms.py`). The planner's own memory model is compared "
        "with XLA's numbers in the table under *Memory* above.", "",
    ]  # fmt: skip
    parts[TABLES] += ["### Collectives", "", *_collectives(), ""]
    if options.cases:
        from benchmarks.planner.cases import published_cases

        parts[CASES] = published_cases()
    texts = {name: "\n".join(wrapped(lines)) for name, lines in parts.items()}
    print("\n\n".join(texts.values()))
    if options.write:
        scatter(_panels(fitted, sources, generations, held), bars_of(unseen), PICTURE)
        PAGE.write_text(_renewed(PAGE.read_text(), texts))


def _first(found: LeftOut) -> list[str]:
    """What stands first: errors on systems that nothing was fitted to, beside the naive guess."""
    return [
        *left_out_table(found), "",
        f"![Errors of predictions by measured speed]({PICTURE.relative_to(PAGE.parent)})", "",
        *spread_table(found), "",
        "Runs of each source inside their interval, and pairs of its layouts more than 5% apart that are predicted in "
        "the order that was measured (-: no such pair):", "",
        *order_table(found), "",
        "By number of GPUs, and of the runs whose tensor ranks are on several hosts (each row counts the same here; "
        "*over sources* is the mean of their biases):", "",
        *sizes_table(found), "",
    ]  # fmt: skip


def _collectives() -> list[str]:
    """Collectives that were measured alone, beside the model's."""
    rows = read_collectives()
    return [
        "All-reduces in one host (VIA-Research/vTrain; `jaxpar/planner/evidence/data/collectives.csv`); "
        "errors of seconds, above 0 where the model is too slow:", "",
        *collectives_table(rows), "",
        "Single numbers that reports of nccl-tests state, of 8 GiB where they name no size (issues of NVIDIA/nccl and "
        "NVIDIA/nccl-tests; none whose maintainers found a fault). Where cards are not stated, 8 of 400 Gb/s are "
        "assumed:", "",
        *cited_table(rows),
    ]  # fmt: skip


def _panels(
    fitted: Sequence[Judged], sources: Mapping[str, Sequence[Judged]], generations: Mapping[str, Sequence[Judged]],
    held: Sequence[Judged],
) -> dict[str, list[Judged]]:  # fmt: skip
    return {
        "in sample": list(fitted),
        "leave one source out": [one for own in sources.values() for one in own],
        "leave one generation of software out, timed as unknown": [one for own in generations.values() for one in own],
        "never fitted": list(held),
    }


def _renewed(page: str, texts: Mapping[str, str]) -> str:
    """The page with its parts replaced."""
    for name, text in texts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, after = page.split(begin)[0], page.split(end)[1]
        page = f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    sys.exit(main())
