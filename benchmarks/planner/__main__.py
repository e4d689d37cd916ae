"""The planner's time model against published runs: fits it, and writes tables and scatter plots to docs/planner.md.

    python -m benchmarks.planner --data ../shared/measurements/calibration.csv             # tables on the screen
    python -m benchmarks.planner --data ... --collectives ../shared/measurements/collectives/allreduce_single_node.csv
    python -m benchmarks.planner --data ... --write                                        # and docs/planner.md

What is fitted: `FITTED`, on the logarithm of predicted over measured tokens/s/GPU. Every source weighs the same,
whatever its number of rows; errors above `TOLERANCE` count by their size, not its square: odd rows do not decide.
Three ways to be judged: by the rows it was fitted to; by each source in turn, fitted to all the others; and by a random
fifth, fitted to the rest. `held out` are runs of jaxpar/planner/evidence/data/held_out.csv, which are never fitted to.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.planner.cases import published_cases
from benchmarks.planner.fit import CURRENT, alone, behind, fit_all, fit_others, fit_rest, random_fifth
from benchmarks.planner.plot import scatter
from benchmarks.planner.tables import (
    behind_table,
    collectives_table,
    errors_table,
    fitted_values,
    neighbours,
    parameters_table,
    wrapped,
)
from jaxpar.cli import Parser, command
from jaxpar.planner.evidence.published import read_runs
from jaxpar.planner.evidence.validate import HELD_OUT, report
from jaxpar.units import percent

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "planner.md"
PICTURE = ROOT / "docs" / "images" / "planner-errors.png"
BEGIN, END = "<!-- benchmarks.planner: begin -->", "<!-- benchmarks.planner: end -->"

IN_SAMPLE = "in sample"
NO_PRIORS = "the same, no priors"


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.planner", __doc__)
    parser.add_argument("--data", type=Path, required=True, help="published runs")
    parser.add_argument("--collectives", type=Path, help="all-reduces measured alone")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} and {PICTURE.name}")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    everything = read_runs(options.data)
    runs = [run for run in everything if run.tokens_per_s_per_gpu is not None]
    memory = [run for run in everything if run.peak_gib is not None]
    rows = behind(runs, CURRENT)
    sources, deciding = sorted({run.source for run in runs}), alone(rows)
    data, of = options.data, lambda source: [run for run in runs if run.source == source]
    with ProcessPoolExecutor(options.jobs) as pool:  # fits are independent of each other
        without = {source: pool.submit(fit_others, data, source) for source in sources}
        neutral = {source: pool.submit(fit_others, data, source, True) for source in deciding}
        rest, refitted, cases = pool.submit(fit_rest, data), pool.submit(fit_all, data), pool.submit(published_cases)
        judged = {
            IN_SAMPLE: CURRENT.judge(runs),
            "leave one source out": [one for name in sources for one in without[name].result().judge(of(name))],
            NO_PRIORS: [
                one for name in sources for one in (neutral.get(name) or without[name]).result().judge(of(name))
            ],
            "random fifth": rest.result().judge([runs[i] for i in sorted(random_fifth(len(runs)))]),
            "never fitted": CURRENT.judge(read_runs(HELD_OUT)),
        }
        found = refitted.result()
    print(fitted_values(found), file=sys.stderr, flush=True)
    reports = {name: report(part) for name, part in judged.items()}
    whole = report(CURRENT.judge(runs + memory))
    again = report(found.judge(runs)).overall.median_error or 0
    parts = [
        "### What a GPU reaches", "", *parameters_table(CURRENT), "",
        f"Refitted, the median over sources is {percent(again)}. No run was at hand on some GPUs, whose shares are "
        f"those of a neighbour: {neighbours()}.", "",
        "The table counts the rows whose prediction moves by 0.1% or more when a parameter moves by a tenth, and their "
        "sources. A parameter that one source alone decides begins at what others measured of the kernels alone, and "
        "stays there when that source is left out:", "",
        *behind_table(rows, CURRENT), "",
        "### Errors of tokens/s/GPU", "",
        *errors_table({name: part for name, part in reports.items() if name != IN_SAMPLE}), "",
        "No priors: those parameters begin, and stay, in the middle of their ranges instead, for the sources that "
        f"alone decide one ({', '.join(deciding)}).", "",
        f"![Errors of predictions by measured speed]({PICTURE.relative_to(PAGE.parent)})", "",
        "In sample, with the choice among measured layouts, and memory (`python -m jaxpar.plan validate`):", "",
        "```", *whole.table(), "```", "",
        "Memory here is Megatron's closed form (`memory/closed_forms.py`) against Kuaishou's measurements. The "
        "planner's own memory model is compared with XLA's numbers in the table under *Memory* above.", "",
    ]  # fmt: skip
    if options.collectives:
        parts += ["### Collectives", "", *collectives_table(options.collectives), ""]
    parts += ["### What the papers say", "", *cases.result()]
    text = "\n".join(wrapped(parts))
    print(text)
    if options.write:
        scatter({name: part for name, part in judged.items() if name != NO_PRIORS}, PICTURE)
        page = PAGE.read_text() if PAGE.exists() else f"# Planner\n\n{BEGIN}\n{END}\n"
        if BEGIN not in page:
            page = f"{page.rstrip()}\n\n## How good the predictions are\n\n{BEGIN}\n{END}\n"
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
