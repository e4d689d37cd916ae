"""The planner's time model against published runs of other systems, each with the mechanisms of its software.

    python -m benchmarks.validation                                   # errors and coverage by source: a minute
    python -m benchmarks.validation --write                           # and docs/prediction-errors.md and the intervals
    python -m benchmarks.validation --data CSV                        # the errors of the runs of a file

Nothing is fitted: each system has its documented mechanisms (`mechanisms`), and is left out in turn (`leave_out`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.validation.page import refusals, validation
from benchmarks.validation.published import read_runs
from jaxpar.cli import Parser, command
from jaxpar.config import UserError
from jaxpar.config.spelling import named
from jaxpar.pages.units import seconds


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.validation", __doc__)
    parser.add_argument("--data", metavar="CSV", type=Path, help="print the errors of predictions of these runs")
    parser.add_argument(
        "--write", action="store_true", help="write docs/prediction-errors.md and the planner's intervals"
    )
    options = parser.parse_args(arguments)
    if options.data is not None and options.write:
        raise UserError("--write: is of the published runs; leave out --data")
    print("\n".join(validation(write=options.write) if options.data is None else errors_of(options.data)))


def errors_of(data: Path) -> list[str]:
    """A row for each run of a file. Raises `UserError`."""
    runs, refused = read_runs(data)
    if not runs:
        why = f"; {refused[0].row}: {refused[0].why}" if refused else ""
        raise UserError(f"{named(data)}: no row has a time that can be compared with{why}")
    lines = ["| run | measured | predicted | error |", "|---|---|---|---|"]
    for run in runs:
        error = run.seconds / run.predicted - 1
        shown = f"{seconds(run.seconds)} | {seconds(run.predicted)} | {100 * error:+.1f}%"
        lines.append(f"| {run.source} {run.row} | {shown} |")
    return [*lines, *refusals(refused)]


if __name__ == "__main__":
    sys.exit(main())
