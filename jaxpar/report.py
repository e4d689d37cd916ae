"""`python -m jaxpar.report runs/a [runs/b ...]`: any number of runs as a self-contained HTML page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jaxpar.cli import Parser, command
from jaxpar.config import UserError
from jaxpar.config.paths import user_location
from jaxpar.config.spelling import named
from jaxpar.remote.cache import local_path
from jaxpar.remote.store import StoreError, write


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


def _report(asked: list[Path], out: Path | None) -> Path | str:
    from jaxpar.observe.report.page import check_page, check_stored_page, html_page
    from jaxpar.observe.report.run_record import read_runs

    folders = [local_path(one, "RUN", lambda names: [name for name in names if "/" not in name]) for one in asked]
    runs = read_runs(folders)
    if out is None and isinstance(user_location(asked[0], "RUN"), str):
        raise UserError(f"--out: expected the page to write, since {named(folders[0].name)} is in a store")
    where = folders[0] / "report.html" if out is None else user_location(out, "--out", written=True)
    if isinstance(where, str):
        try:
            check_stored_page(where)
            write(where, html_page(runs).encode(errors="replace"))
        except StoreError as error:
            raise StoreError(f"--out: {error}") from error
        return where
    check_page(page := where)
    from jaxpar.observe.files import write_atomically

    try:
        # A file's text may have a lone surrogate, which UTF-8 cannot encode.
        write_atomically(page, html_page(runs).encode(errors="replace"))
    except OSError as error:
        raise UserError(f"--out {named(page)}: cannot be written ({error.strerror})") from error
    return page


if __name__ == "__main__":
    sys.exit(main())
