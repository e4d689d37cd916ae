"""`python -m jaxpar.inspect --config X --cluster h100:1x8`: memory, traffic and time of a step, without a GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jaxpar.cli import Parser, command, paths_by_suffix, seconds, stop

OUTPUTS = {
    ".html": "a page with memory over time and the schedule",
    ".svg": "a picture of one layer over time",
}


@command()
def main(arguments: Sequence[str]) -> int | None:
    """Inspect from the command line; returns the exit code: 0 done (fits or not), 2 the user's mistake."""
    parser = Parser(
        "jaxpar.inspect",
        "Compile the training step for a cluster that need not be present, and report whether "
        "it fits, what it transfers, and which transfers it waits for (docs/inspect.md).",
    )
    parser.add_config("YAML file", required=True)
    parser.add_cluster()
    parser.add_json()
    parser.add_out(OUTPUTS)
    words = "limit of a compile (default 600)"
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds, default=600, help=words)
    parser.add_argument("--no-cache", action="store_true", help="do not use the cache of compiled programs")
    return _inspect(parser.parse_args(arguments))


def _inspect(options: argparse.Namespace) -> int | None:
    files = paths_by_suffix(options.out, OUTPUTS)
    from jaxpar.compiler.inspection import inspect_step
    from jaxpar.compiler.program.hlo.records import ProgramError

    try:
        inspect_step(options, files.get(".html"), files.get(".svg"))
    except ProgramError as error:
        return stop(1, f"XLA's program has a part that jaxpar cannot read: {error}")
    if not options.json:
        _print_answers(options)
    return None


def _print_answers(options: argparse.Namespace) -> None:
    """Print what drawing answers takes, where the run learns from them."""
    from jaxpar.compiler.report.screen import INSPECT_WIDTH, screen
    from jaxpar.config import load_config
    from jaxpar.hardware.cluster import parse_cluster
    from jaxpar.planner.rollouts import draws_here, of_run, print_splits

    config = load_config(options.config, options.overrides)
    if draws_here(config):
        cluster = parse_cluster(options.cluster)
        print_splits(of_run(config, cluster), config.rl.mode, cluster, screen(INSPECT_WIDTH))


if __name__ == "__main__":
    sys.exit(main())
