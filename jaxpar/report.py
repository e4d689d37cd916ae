"""`python -m jaxpar.report runs/a [runs/b ...]`: any number of runs as a self-contained HTML page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jaxpar.cli import Parser, command
from jaxpar.config import UserError
from jaxpar.config.spelling import named


@command()
def main(arguments: Sequence[str]) -> None:
    """Write a report from the command line; the exit code: 0 done, 2 a user error."""
    parser = Parser(
        "jaxpar.report",
        "Write a page about a run, or about several side by side: curves, plan, memory, time, environment, "
        "events; with three or more also a table to sort. It needs no network, and works while the run is going "
        "(docs/reports.md).",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folder of a run; several are compared")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the page (default: report.html in the first folder)")
    options = parser.parse_args(arguments)
    print(f"Page: {_report(options.runs, options.out)}")


def _report(folders: list[Path], out: Path | None) -> Path:
    from jaxpar.observe.report.page import check_page, html_page
    from jaxpar.observe.report.run_record import read_runs

    runs = read_runs(folders)
    page = folders[0] / "report.html" if out is None else out
    check_page(page)
    from jaxpar.observe.files import write_atomically

    try:
        # A file's text may have a lone surrogate, which UTF-8 cannot encode.
        write_atomically(page, html_page(runs).encode(errors="replace"))
    except OSError as error:
        raise UserError(f"--out {named(page)}: cannot be written ({error.strerror})") from error
    return page


if __name__ == "__main__":
    sys.exit(main())
