"""`python -m jaxpar.train --config X [--set section.key=value ...]`: train a model."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.config import Config, UserError
from jaxpar.config.reference import help_text
from jaxpar.mesh.liveness import depart

if TYPE_CHECKING:
    from jaxpar.planner.document import PlanDocument


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the command line; returns the exit code: 0 done, 1 the run had to stop, 2 the user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxpar.train",
        description="Train a decoder on the mesh that a YAML file describes. Running it again continues the run.",
        epilog=help_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file; without one, every key has its default")
    words = "a plan.json that python -m jaxpar.plan wrote, in place of --config: it has the whole configuration"
    parser.add_argument("--plan", metavar="FILE", help=words)
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="SECTION.KEY=VALUE",
        action="append",
        default=[],
        help="override a key of the file; may be given many times",
    )
    options = parser.parse_args(arguments)
    try:
        return _train(options.config, options.plan, options.overrides)
    except UserError as error:
        print(f"jaxpar: {error}", file=sys.stderr)
        return depart(2, str(error))
    except KeyboardInterrupt:
        print("jaxpar: interrupted; the same command continues from the newest checkpoint", file=sys.stderr)
        return depart(130, "interrupted")


def _train(file: str | None, plan: str | None, overrides: Sequence[str]) -> int:
    from jaxpar.config import load_config
    from jaxpar.config.overrides import with_overrides

    if file is not None and plan is not None:
        raise UserError(
            f"--plan {plan}: expected no --config with it; the plan has the configuration, and --set changes it"
        )
    document = None if plan is None else _document(plan)
    config = load_config(file, overrides) if document is None else with_overrides(document.config, overrides)
    warnings.filterwarnings("ignore", module=r"(jax|orbax|flax|grain|tensorboardX)\b.*")
    if config.parallel.auto:
        config = _plan_here(config)
    elif document is not None and config.parallel == document.config.parallel:
        _check_kinds(document, config)
    from jaxpar.training.errors import TrainingError
    from jaxpar.training.trainer import Trainer

    try:
        Trainer(config).fit()
    except TrainingError as error:
        print(f"jaxpar: {error}", file=sys.stderr)
        return depart(1, str(error))
    return 0


def _document(plan: str) -> PlanDocument:
    """What `plan.json` says."""
    from jaxpar.planner.document import read_document

    return read_document(Path(plan))


def _check_kinds(document: PlanDocument, config: Config) -> None:
    """Where a plan has stages for GPUs of several kinds, they must be on those kinds. Raises `UserError`."""
    stages = document.predicted.get("stages") or []
    if len({stage["gpu"] for stage in stages}) < 2:
        return
    from jaxpar.layers.checks import validate
    from jaxpar.mesh.devices import find_devices, prepare_devices
    from jaxpar.planner.machine import check_stage_kinds

    validate(config)
    prepare_devices(document.plan.axes.devices, config.distributed)
    check_stage_kinds(stages, document.plan.axes.pipe, find_devices())


def _plan_here(config: Config) -> Config:
    """`parallel: auto`: the best layout for the devices of this job, which every process finds alike."""
    from jaxpar.config.axes import VIRTUAL_DEVICES
    from jaxpar.layers.checks import validate
    from jaxpar.mesh.devices import find_devices, prepare_devices
    from jaxpar.planner.machine import cluster_at_hand
    from jaxpar.planner.planning import best_plan

    validate(config)
    prepare_devices(VIRTUAL_DEVICES, config.distributed)
    return best_plan(config, cluster_at_hand(find_devices()))


if __name__ == "__main__":
    sys.exit(main())
