"""`python -m jaxpar.doctor [--config X]`: checks the installation, the machine and the cluster."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

from jaxpar.cli import Parser, command
from jaxpar.config import load_config


@command()
def main(arguments: Sequence[str]) -> int:
    """Check from the command line; the exit code: 0 well, 1 something is wrong, 2 the user's mistake."""
    parser = Parser(
        "jaxpar.doctor",
        "Check versions, driver, devices, memory, collectives, the folder of runs and a tiny step, and "
        "print how to fix problems. Start it as a run is started (srun, mpirun, launch/local.py) to check all hosts.",
    )
    parser.add_config("configuration of the run: its layout, folder and model are checked")
    parser.add_json()
    return _check(parser.parse_args(arguments))


def _check(options: argparse.Namespace) -> int:
    overrides = options.overrides
    if options.config is None:  # The defaults are for one device; check all that are present.
        overrides = ["parallel.fsdp=-1", *overrides]
    config = load_config(options.config, overrides)

    from jaxpar.checkup.checkup import check_all
    from jaxpar.checkup.finding import worst
    from jaxpar.checkup.report import show, to_json
    from jaxpar.compiler.quiet import native_output_to_stderr

    began = time.perf_counter()
    with native_output_to_stderr() if options.json else nullcontext():
        findings, reports = check_all(config)
    if reports and options.json:
        print(to_json(findings))
    elif reports:
        show(findings, time.perf_counter() - began)
    return 1 if worst(findings) == "fail" else 0


if __name__ == "__main__":
    sys.exit(main())
