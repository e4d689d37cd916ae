"""The planner's time model against published runs of other systems.

    python -m benchmarks.validation                                   # how good it is on systems left out: minutes
    python -m benchmarks.validation --write                           # and docs/planner.md and the planner's intervals
    python -m benchmarks.validation --data CSV                        # the errors of the runs of a file
    python -m benchmarks.validation --data CSV --measured RUNS        # its rows, after runs of the same software

What is fitted: `fit.FITTED`, on the logarithm of predicted over measured tokens/s/GPU. Every source weighs the same,
whatever its number of rows; errors above `TOLERANCE` count by their size, not its square: odd rows do not decide.
Judged in four ways: by the rows it was fitted to; by each source in turn, fitted to all the others; by each generation
of software in turn, timed as software that is not known and fitted to all the others; and by runs of data/held_out.csv,
which are never fitted to.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.validation.after_runs import after_runs, lines
from benchmarks.validation.report import validate
from jaxpar.cli import Parser, command
from jaxpar.config import UserError
from jaxpar.config.strict_json import json_text


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.validation", __doc__)
    parser.add_argument("--data", metavar="CSV", type=Path, help="print the errors of predictions of these runs")
    words = "runs of the same software: print what follows for each row of --data, which needs no time"
    parser.add_argument("--measured", metavar="FOLDER|CSV", type=Path, help=words)
    parser.add_argument("--cases", action="store_true", help="plan the papers' models too, which takes minutes")
    parser.add_argument("--write", action="store_true", help="write docs/planner.md, its picture, and the intervals")
    parser.add_json()
    options = parser.parse_args(arguments)
    if options.data is None:
        if options.measured or options.json:
            raise UserError(f"{'--measured' if options.measured else '--json'}: expected --data CSV beside it")
        from benchmarks.validation.page import validation

        print(validation(cases=options.cases, write=options.write))
        return
    if options.cases or options.write:
        raise UserError(f"--{'cases' if options.cases else 'write'}: is of the published runs; leave out --data")
    found, text = _of_file(options.data, options.measured)
    print(json_text(found, indent=2) if options.json else "\n".join(text))


def _of_file(data: Path, measured: Path | None) -> tuple[dict[str, Any], list[str]]:
    """The report of a file, as JSON and as lines. Raises `UserError`."""
    if measured is None:
        report = validate(data)
        return report.as_json(), report.lines()
    rows, refused = after_runs(data, measured)
    found = {"predicted": [one.as_json() for one in rows], "refused": [vars(one) for one in refused]}
    return found, lines(rows, refused)


if __name__ == "__main__":
    sys.exit(main())
