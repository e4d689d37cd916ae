"""`python -m jaxpar.inspect --config X --cluster h100:1x8`: memory, traffic and time of a step, without a GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxpar.cli import Parser, by_ending, command, seconds, size, stop
from jaxpar.config import UserError

OUTPUTS = {
    ".html": "a page with memory over time and the schedule",
    ".svg": "a picture of one layer over time (with --diff of both), or with --remat-frontier of the frontier",
    ".png": "with --remat-frontier the frontier",
}
WHAT_IS_LEFT = -1  # no size that a user can give


@command()
def main(arguments: Sequence[str]) -> int | None:
    """Inspect from the command line; returns the exit code: 0 done (fits or not), 2 the user's mistake."""
    parser = Parser(
        "jaxpar.inspect",
        "Compile the training step for a cluster that need not be present, and report whether "
        "it fits, what it transfers, and which transfers it waits for (docs/inspect.md).",
    )
    parser.add_config("YAML file", required=True, overridden="of the file (with --diff of both files)")
    parser.add_cluster()
    parser.add_json()
    parser.add_out(OUTPUTS)
    parser.add_argument("--diff", metavar="FILE", type=Path, help="compare with this configuration")
    parser.add_argument(
        "--remat-frontier",
        action="store_true",
        help="compile nothing; print what layers could keep between forward and backward, in bytes against time",
    )
    parser.add_argument(
        "--chunks",
        metavar="SIZE",
        type=size,
        nargs="?",
        const=WHAT_IS_LEFT,
        help="compile nothing; print which weights' master weights and moments (or which layers) stay on a GPU, and "
        "what the others move, if SIZE of them (as in 6GiB; by default what is left) may be there",
    )
    words = "limit of a compile (default 600)"
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds, default=600, help=words)
    parser.add_argument("--no-cache", action="store_true", help="do not use the cache of compiled programs")
    return _inspect(parser.parse_args(arguments))


def _inspect(options: argparse.Namespace) -> int | None:
    if options.out and options.chunks is not None and not options.remat_frontier:
        raise UserError("--out: expected no --chunks with it, which writes nothing")
    files = by_ending(options.out, (".svg", ".png") if options.remat_frontier else (".html", ".svg"))
    from jaxpar.compiler.chunk_plans import ChunkInspection
    from jaxpar.compiler.inspection import Inspection
    from jaxpar.compiler.program.hlo.records import ProgramError
    from jaxpar.compiler.remat_frontier.inspection import FrontierInspection

    quick = "--remat-frontier" if options.remat_frontier else "--chunks" if options.chunks is not None else None
    if quick is not None:
        both = "--chunks" if options.remat_frontier and options.chunks is not None else None
        for name, given in (("--diff", options.diff), ("--chunks", both)):
            if given is not None:
                raise UserError(f"{name}: expected no {quick} with it, which compiles nothing")
    if options.chunks is not None:
        budget = None if options.chunks == WHAT_IS_LEFT else options.chunks
        ChunkInspection(options.config, options.cluster, options.overrides, budget, options.json).run()
        return None
    if options.remat_frontier:
        FrontierInspection(options.config, options.cluster, options.overrides, options.json, [*files.values()]).run()
        return None
    inspection = Inspection(
        config=options.config,
        cluster=options.cluster,
        overrides=options.overrides,
        other=options.diff,
        as_json=options.json,
        page=files.get(".html"),
        picture=files.get(".svg"),
        timeout_s=options.timeout,
        remember=not options.no_cache,
    )
    try:
        inspection.run()
    except ProgramError as error:
        return stop(1, f"XLA's program has a part that jaxpar cannot read: {error}")


if __name__ == "__main__":
    sys.exit(main())
