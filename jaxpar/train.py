"""`python -m jaxpar.train --config X [--set section.key=value ...]`: train a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.cli import Parser, command, stop
from jaxpar.config import Config, UserError
from jaxpar.config.reading.reference import help_text
from jaxpar.config.user_code import refuse_stored_code
from jaxpar.distributed.ctrl_c import exit_at_second_signal

if TYPE_CHECKING:
    from jaxpar.config.plan import Plan
    from jaxpar.layout.plan_file import PlanFile


@exit_at_second_signal()
@command("interrupted; the same command continues from the newest checkpoint, or from the start where there is none")
def main(arguments: Sequence[str]) -> int:
    """Train from the command line; returns the exit code: 0 done, or asked to stop and saved, 1 the run had
    to stop, 2 a user error, 130 interrupted without saving."""
    what = "Train a decoder on the mesh that a YAML file describes. Running it again continues the run."
    parser = Parser("jaxpar.train", what, help_text())
    parser.add_config()
    words = "a plan.json of python -m jaxpar.plan or of a run, in place of --config: its plan is run as it is"
    parser.add_argument("--plan", metavar="FILE", type=Path, help=words)
    parser.add_argument("--verbose", action="store_true", help="print every decision of the plan with its reason")
    options = parser.parse_args(arguments)
    return _train(options.config, options.plan, options.overrides, options.verbose)


def _train(file: Path | None, plan: Path | None, overrides: Sequence[str], verbose: bool) -> int:
    from jaxpar.config import load_config
    from jaxpar.config.reading.overrides import with_overrides
    from jaxpar.layout.plan_file import read as read_plan

    if file is not None and plan is not None:
        raise UserError(
            f"--plan {plan}: expected no --config with it; the plan has the configuration, and --set changes it"
        )
    given = None if plan is None else read_plan(plan)
    config = load_config(file, overrides) if given is None else with_overrides(given.config, overrides)
    chosen = None
    if given is not None:
        refuse_stored_code(config, overrides, f"--plan {plan}")
        with _machine_first(given):
            _check_given(given, config)
        chosen = given.plan
    elif config.parallel.auto:
        config, chosen = _plan_here(config)
    from jaxpar.observe.writers.default import default_listeners
    from jaxpar.training.errors import TrainingError
    from jaxpar.training.run.trainer import Trainer

    try:
        with _machine_first(given):
            trainer = Trainer(config, plan=chosen)
        trainer.fit(default_listeners(trainer.config, verbose=verbose))
    except TrainingError as error:
        return stop(1, str(error))
    return 0


def _check_given(given: PlanFile, config: Config) -> None:
    """Check that the plan's inputs are unchanged, and that stages for heterogeneous GPUs are on them. Raises
    `UserError`."""
    from jaxpar.layout.given_plan import check_same_layout

    check_same_layout(given.config, config)
    stages = given.predicted.get("stages") or []
    if len({stage["gpu"] for stage in stages}) < 2:
        return
    from jaxpar.distributed.devices import find_devices, prepare_devices
    from jaxpar.layout.checks.validate import validate
    from jaxpar.planner.machine import check_stage_kinds

    validate(config)
    prepare_devices(given.plan.axes.devices, config.distributed)
    check_stage_kinds(stages, given.plan.axes.pipe, find_devices())


@contextmanager
def _machine_first(given: PlanFile | None) -> Iterator[None]:
    """A refusal of a plan for GPUs begins with the GPUs that it is for and what is here, where that is another."""
    try:
        yield
    except UserError as error:
        planned = None if given is None else _gpus_of(given)
        if planned is None:
            raise
        from jaxpar.distributed.devices import has_gpu, host_gpu, host_gpus

        gpu = host_gpu()
        here = f"{host_gpus()} x {gpu.name if gpu else 'GPU'} in this host" if has_gpu() else "1 CPU"
        raise UserError(f"this plan is for {planned}; here is {here}: {error}") from error


def _gpus_of(given: PlanFile) -> str | None:
    """The GPUs that a plan is for; None for a plan for CPUs, and where its cluster is not known here."""
    from jaxpar.planner.machine import is_cpu, named_cluster

    try:
        cluster = None if given.cluster is None else named_cluster(given.cluster)
    except UserError:  # a cluster's file may be elsewhere
        return None
    return None if cluster is None or is_cpu(cluster) else f"{cluster.devices} x {cluster.gpu.name}"


def _plan_here(config: Config) -> tuple[Config, Plan]:
    """`parallel: auto`: the best layout for the devices of this job, the same on every process."""
    from jaxpar.config.axes import VIRTUAL_DEVICES
    from jaxpar.distributed.devices import find_devices, prepare_devices
    from jaxpar.layout.checks.validate import validate
    from jaxpar.planner.machine import cluster_at_hand
    from jaxpar.planner.planning import best_plan

    validate(config)
    prepare_devices(VIRTUAL_DEVICES, config.distributed)
    planned = best_plan(config, cluster_at_hand(find_devices()))
    return planned.config, planned.plan


if __name__ == "__main__":
    sys.exit(main())
