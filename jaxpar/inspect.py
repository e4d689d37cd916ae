"""`python -m jaxpar.inspect --config X --cluster h100:1x8`: memory, traffic and time of a step, without a GPU."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from jaxpar.config import UserError

CLUSTER = "gpu:hosts x gpus, as in h100:1x8, or a .yaml file (docs/clusters.md)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Inspect from the command line; returns the exit code: 0 done (fits or not), 2 the user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxpar.inspect",
        description="Compile the training step for a cluster that need not be present, and report whether "
        "it fits, what it transfers, and which transfers it waits for (docs/inspect.md).",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, required=True, help="YAML file")
    parser.add_argument("--cluster", required=True, help=CLUSTER)
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="SECTION.KEY=VALUE",
        action="append",
        default=[],
        help="override a key of the file (with --diff of both files); may be given many times",
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with memory over time and the schedule")
    parser.add_argument("--diff", metavar="FILE", type=Path, help="compare with this configuration")
    parser.add_argument(
        "--remat-front",
        action="store_true",
        help="compile nothing; print what layers could keep between forward and backward, in bytes against time",
    )
    parser.add_argument(
        "--chunks",
        metavar="SIZE",
        nargs="?",
        const="",
        help="compile nothing; print which weights' master weights and moments (or which layers) stay on a GPU, and "
        "what the others move, if SIZE of them (as in 6GiB; by default what is left) may be there",
    )
    parser.add_argument("--picture", metavar="FILE", type=Path, help="with --remat-front: draw it, as .svg or .png")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=600, help="limit of a compile (default 600)"
    )
    parser.add_argument("--no-cache", action="store_true", help="do not use the cache of compiled programs")
    options = parser.parse_args(arguments)
    try:
        return _inspect(options)
    except UserError as error:
        print(f"jaxpar: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jaxpar: interrupted", file=sys.stderr)
        return 130


def _inspect(options: argparse.Namespace) -> int:
    if options.picture is not None and not options.remat_front:
        raise UserError("--picture: expected --remat-front with it; the page of a compiled step is --html")
    warnings.filterwarnings("ignore", module=r"(jax|orbax|flax|grain)\b.*")
    from jaxpar.compiler.quiet import quiet_screen

    with quiet_screen():
        from jaxpar.compiler.chunk_plans import ChunkInspection
        from jaxpar.compiler.inspection import Inspection
        from jaxpar.compiler.program.hlo.records import ProgramError
        from jaxpar.compiler.remat_frontier.inspection import FrontierInspection

    quick = "--remat-front" if options.remat_front else "--chunks" if options.chunks is not None else None
    if quick is not None:
        both = "--chunks" if options.remat_front and options.chunks is not None else None
        for name, given in (("--html", options.html), ("--diff", options.diff), ("--chunks", both)):
            if given is not None:
                raise UserError(f"{name}: expected no {quick} with it, which compiles nothing")
    if options.chunks is not None:
        ChunkInspection(options.config, options.cluster, options.overrides, options.chunks, options.json).run()
        return 0
    if options.remat_front:
        FrontierInspection(options.config, options.cluster, options.overrides, options.json, options.picture).run()
        return 0
    inspection = Inspection(
        config=options.config,
        cluster=options.cluster,
        overrides=options.overrides,
        other=options.diff,
        as_json=options.json,
        page=options.html,
        timeout_s=options.timeout,
        remember=not options.no_cache,
    )
    try:
        inspection.run()
    except ProgramError as error:
        print(f"jaxpar: XLA's program has a part that jaxpar cannot read: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
