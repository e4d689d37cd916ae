"""`python -m jaxpar.sweep --config X --set KEY=VALUE,VALUE`: a run for each point, and their report."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.cli import Parser, command, positive, run_command
from jaxpar.config import Config, UserError
from jaxpar.config.reading.sweep_points import drawn, grid, suffixes, varied

if TYPE_CHECKING:
    from jaxpar.observe.report.run_record import RunRecord

ARRAY_INDEX = "SLURM_ARRAY_TASK_ID"
"""Variable of a Slurm array's job: the index of the point that it trains, from 0."""

EPILOG = """\
Each point is a run of jaxpar.train named after its values, under the run.name of the configuration. The same command
skips runs that are done, and continues those that are not. Programs are shared where points differ in what no program
depends on, such as the learning rate (run.compile_cache).

    python -m jaxpar.sweep --config X --set optimizer.learning_rate=1e-3,3e-3 --set optimizer.weight_decay=0,0.1
    python -m jaxpar.sweep --config X --set optimizer.learning_rate=1e-4..1e-2 --random 8
    JAXPAR_COMMAND=sweep sbatch --array=0-3 launch/slurm.sbatch --config X --set ...

In a Slurm array each job trains the point of its index; the same command without Slurm then writes the report.
"""


@dataclass(frozen=True)
class Run:
    """The run of a point."""

    sweep: str
    """The `run.name` that all points share."""
    config: Config
    words: list[str]
    """Words after `python -m`."""

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return Path(self.config.run.dir).expanduser() / self.config.run.name


@command("interrupted; the same command continues the sweep")
def main(arguments: Sequence[str]) -> int:
    """Run a sweep from the command line; the exit code: 0 all points done, 1 a point failed, 2 a user error, 130
    interrupted."""
    parser = Parser("jaxpar.sweep", "Train a run for each combination of values, and report them.", EPILOG)
    parser.add_config("YAML file of what all runs share; a --set may have several values, separated by commas")
    words = "train N points drawn at random, with ranges low..high drawn by logarithm (default: all combinations)"
    parser.add_argument("--random", metavar="N", type=positive, help=words)
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of --random (default: 0)")
    parser.add_argument("--list", action="store_true", help="print the command of each point, and train nothing")
    words = "the page that compares the runs (default: <run.dir>/<run.name>-sweep.html)"
    parser.add_argument("--out", metavar="FILE", type=Path, help=words)
    options = parser.parse_args(arguments)
    runs = _runs(options)
    if options.list:
        print("\n".join(f"{index}: python -m {shlex.join(run.words)}" for index, run in enumerate(runs)))
        return 0
    if ARRAY_INDEX in os.environ:
        _exec_point(runs)
    page = runs[0].folder.parent / f"{runs[0].sweep}-sweep.html"
    if options.out is not None:
        from jaxpar.observe.report.page import check_page

        page = options.out
        check_page(page)
    return _train(runs, page)


def _runs(options: argparse.Namespace) -> list[Run]:
    """The runs of all points, each configuration checked."""
    from jaxpar.config import load_config
    from jaxpar.layout.checks.validate import validate

    shared, keys = varied(options.overrides)
    for key in ("run.name", "run.dir"):
        if key in keys:
            raise UserError(f"--set {key}: expected one value; the runs are named after the values of the other keys")
    points = grid(keys) if options.random is None else drawn(keys, options.random, options.seed)
    name = load_config(options.config, shared).run.name
    file = [] if options.config is None else ["--config", str(options.config)]
    runs = list[Run]()
    for point, suffix in zip(points, suffixes(points), strict=True):
        overrides = [*shared, *(f"{key}={value}" for key, value in point.items()), f"run.name={name}-{suffix}"]
        config = load_config(options.config, overrides)
        validate(config)
        runs.append(Run(name, config, ["jaxpar.train", *file, *(word for one in overrides for word in ("--set", one))]))
    return runs


def _exec_point(runs: Sequence[Run]) -> None:
    """Replace this process of a Slurm array by the training of its point, so that signals reach it."""
    index = os.environ[ARRAY_INDEX]
    if not index.isdecimal() or int(index) >= len(runs):
        raise UserError(f"{ARRAY_INDEX}: {index}: expected --array=0-{len(runs) - 1}, an index for each point")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", *runs[int(index)].words])


def _train(runs: Sequence[Run], page: Path) -> int:
    """Train what is not done, and write the report."""
    failed = list[str]()
    for index, run in enumerate(runs, 1):
        name = run.config.run.name
        if _is_done(run):
            print(f"{index} of {len(runs)}: {name} is done", flush=True)
            continue
        print(f"{index} of {len(runs)}: python -m {shlex.join(run.words)}", flush=True)
        if code := run_command(run.words):
            failed.append(f"{name} (exit status {code})")
        elif not _is_done(run):
            raise KeyboardInterrupt  # the run was told to stop, and saved
    code = _report(runs, page)
    if failed:
        print(f"{len(failed)} of {len(runs)} points failed: {', '.join(failed)}")
    return 1 if failed else code


def _record(run: Run) -> RunRecord | None:
    """The record of the run's folder, if it has one, of this configuration: a null in it may be resolved there."""
    from jaxpar.config.paths import RUN_CONFIG
    from jaxpar.observe.report.run_record import read_runs
    from jaxpar.training.run_folder.same_run import forbidden_changes

    if not (run.folder / RUN_CONFIG).is_file():
        return None
    record = read_runs([run.folder])[0]
    changes = [] if record.config is None else forbidden_changes(record.config, run.config)
    return record if all(line.endswith(" -> null") for line in changes) else None


def _is_done(run: Run) -> bool:
    """Whether the run has all of its steps."""
    record = _record(run)
    return record is not None and record.complete and record.last_step >= run.config.run.steps


def _report(runs: Sequence[Run], page: Path) -> int:
    """Print the validation losses, the least first, and write the page; the exit code of that."""
    from jaxpar.observe.report.figures import last

    records = [record for run in runs if (record := _record(run)) is not None]
    loss = last("eval_loss")
    ordered = sorted((value, record.label) for record in records if (value := loss(record)) is not None)
    print("\nvalidation loss at the end, nats a token")
    for value, label in ordered:
        print(f"{value:>10.4f}  {label}", flush=True)
    if not records:
        return 0
    return run_command(["jaxpar.report", *(str(record.folder) for record in records), "--out", str(page)])


if __name__ == "__main__":
    sys.exit(main())
