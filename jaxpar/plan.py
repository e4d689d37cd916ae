"""`python -m jaxpar.plan --config X --cluster h800:32x8`: finds the best layout for a cluster without access to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jaxpar.cli import Parser, command, paths_by_suffix, positive, seconds
from jaxpar.config import UserError
from jaxpar.config.spelling import did_you_mean
from jaxpar.planner.failures import GPU_HOURS, RESTART_MINUTES, STRAGGLERS

EXAMPLES = """\
examples:
  python -m jaxpar.plan --config configs/llama3_8b.yaml --cluster h100:4x8 --top 5
  python -m jaxpar.plan --config configs/gpt3_175b_32k.yaml --cluster h800:32x8 --fix tensor=8
  python -m jaxpar.plan --config configs/quickstart.yaml --cluster cpu:1x8 && python -m jaxpar.train --plan plan.json

other commands (each has --help):
  explain   print a plan.json in words
  budget    days and costs against the number of GPUs
  cluster   share a cluster among training jobs over time
  calibrate measure this machine; later plans use what it writes (--profile)
  place     place ranks on nodes by the measured bandwidth between them

docs/predictions.md explains how times are predicted, and where they are wrong.
"""

OUTPUTS = {".json": "the best plan, by default plan.json"}

JOBS = """\
a file of jobs (hours from now; config is relative to the file):
  jobs:
    chat: {config: llama3_8b.yaml, tokens: 2e10, deadline: 72}
    study: {config: llama3_8b.yaml, tokens: 5e9, arrives: 6, priority: 2, gpus: 16, set: [data.batch_size=256]}
"""


@command()
def main(arguments: Sequence[str]) -> None:
    """Plan from the command line; the exit code: 0 done, 2 the user's mistake."""
    first, *others = arguments or [""]
    if first in COMMANDS:
        COMMANDS[first](others)
    elif first and not first.startswith("-"):
        raise UserError(f"there is no command {first!r}{did_you_mean(first, COMMANDS)}")
    else:
        _plan(arguments)


def _plan(arguments: Sequence[str]) -> None:
    options = vars(_parser().parse_args(arguments))
    files = paths_by_suffix(options.pop("out"), OUTPUTS)
    _load()
    from jaxpar.planner.planning import Planning

    Planning(**options, output=files.get(".json", Planning.output)).run()


def _parser() -> Parser:
    what = "Find the best layout of a model for a cluster that need not be present, and write plan.json."
    parser = Parser("jaxpar.plan", what, EXAMPLES, COMMANDS)
    parser.add_config("YAML file; keys of parallel that the planner chooses are ignored", required=True)
    parser.add_cluster()
    add = parser.add_argument
    words = "fix a choice, as in tensor=8, schedule=1f1b, remat=full, offload=none; may be repeated"
    add("--fix", dest="fixed", metavar="NAME=VALUE", action="append", default=[], help=words)
    words = "leave out a mechanism, as in offload, ulysses or zb-uniform; unmeasured: all that no published run used"
    add("--avoid", dest="avoided", metavar="NAME", action="append", default=[], help=words)
    add("--top", metavar="N", type=positive, default=5, help="how many layouts (default 5)")
    parser.add_out(OUTPUTS)
    parser.add_json("print JSON and nothing else: a list, best first")
    words = "print predictions alone: do not compile the top layouts for the cluster's GPUs and rank them by that"
    add("--no-verify", dest="verify", action="store_false", help=words)
    add("--show-model", action="store_true", help="print every number behind the times, and its source")
    add("--profile", metavar="FILE", type=Path, help="file of `calibrate`, in place of fitted numbers")
    words = "folder of a run on this cluster, which corrects times and intervals, as in runs/a; may be repeated"
    add("--measured", metavar="FOLDER", type=Path, action="append", default=[], help=words)
    words = "for all compiles together (default 300); layouts that are left keep their predicted times"
    add("--timeout", metavar="SECONDS", type=seconds, default=300, help=words)
    return parser


def _explain(arguments: Sequence[str]) -> None:
    parser = Parser("jaxpar.plan explain", "Print a plan.json in words.")
    parser.add_argument("plan", metavar="FILE", type=Path, help="a plan.json")
    options = parser.parse_args(arguments)
    _load()
    from jaxpar.compiler.report.screen import screen
    from jaxpar.planner.report.explain import print_explanation

    print_explanation(options.plan, screen())


def _budget(arguments: Sequence[str]) -> None:
    parser = Parser(
        "jaxpar.plan budget",
        "Days and costs of a training run against the number of GPUs, with the best layout at each.",
    )
    parser.add_config("YAML file; keys of parallel that the planner chooses are ignored", required=True)
    parser.add_cluster("the kind of host, as in h100:1x8; its number of hosts is ignored")
    parser.add_json()
    add = parser.add_argument
    add("--tokens", type=float, required=True, help="to train on, as in 1e12")
    add("--gpus", required=True, metavar="A:B", help="from A to B GPUs, by doubling")
    add("--price", type=float, required=True, help="price of a GPU-hour")
    add("--mtbf", type=float, default=GPU_HOURS, help="hours of one GPU between interruptions (default 50,677)")
    add("--restart", type=float, default=RESTART_MINUTES, help="minutes from an interruption to training (default 10)")
    words = "share of the run's time that is lost to stragglers (default 0.104)"
    add("--stragglers", metavar="SHARE", type=float, default=STRAGGLERS, help=words)
    add("--power-cap", type=float, metavar="WATTS", help="power cap of a GPU: slower matmuls, less energy")
    add("--days", type=float, help="a time budget: print the compute-optimal model size for it at each number of GPUs")
    options = parser.parse_args(arguments)
    _load()
    from jaxpar.planner.budget import Budget

    Budget(**vars(options)).run()


def _cluster(arguments: Sequence[str]) -> None:
    parser = Parser(
        "jaxpar.plan cluster",
        "Share a cluster among training jobs: how many GPUs each gets over time, by the predicted speed of each.",
        JOBS,
    )
    parser.add_cluster()
    parser.add_argument("--jobs", metavar="FILE", type=Path, required=True, help="YAML file of jobs")
    parser.add_json()
    options = parser.parse_args(arguments)
    _load()
    from jaxpar.planner.jobs.share import ClusterJobs

    ClusterJobs(options.cluster, options.jobs, options.json).run()


def _calibrate(arguments: Sequence[str]) -> None:
    parser = Parser(
        "jaxpar.plan calibrate",
        "Measure this machine: matmuls of a model's shapes, its attention, memory, copies to the host, collectives by "
        "size and group. Start it as a training run on several hosts, and it measures between them.",
    )
    parser.add_config("YAML file of the model whose shapes are measured (default: Llama-3 8B; on CPUs a small decoder)")
    parser.add_argument(
        "--out",
        dest="output",
        metavar="FILE",
        type=Path,
        default=Path("hardware.yaml"),
        help="profile to write (default: hardware.yaml)",
    )
    parser.add_argument("--devices", metavar="N", type=positive, default=8, help="virtual CPU devices (default 8)")
    options = parser.parse_args(arguments)
    _load()
    from jaxpar.planner.calibration.calibrate import Calibration

    Calibration(**vars(options)).run()


def _place(arguments: Sequence[str]) -> None:
    parser = Parser(
        "jaxpar.plan place",
        "Assign nodes to places in the mesh, by simulated annealing over a measured bandwidth matrix.",
    )
    parser.add_argument("plan", metavar="FILE", type=Path, help="a plan.json")
    words = "MB/s between nodes, row sends to column; by default the file that the cluster's YAML names"
    parser.add_argument("--bandwidth", metavar="CSV", type=Path, help=words)
    parser.add_json()
    options = parser.parse_args(arguments)
    _load()
    from jaxpar.planner.placement.placement import print_placement

    print_placement(options.plan, options.bandwidth, as_json=options.json)


def _load() -> None:
    """Import slow modules after the arguments are checked."""
    from jaxpar.planner.memo import no_collection

    with no_collection():
        import jaxpar.planner.planning  # noqa: F401


COMMANDS = {
    "explain": _explain,
    "budget": _budget,
    "cluster": _cluster,
    "calibrate": _calibrate,
    "place": _place,
}
"""Subcommands of `python -m jaxpar.plan`, in place of options."""


if __name__ == "__main__":
    sys.exit(main())
