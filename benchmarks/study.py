"""Validation losses of the quickstart's model trained with one setting or another, over seeds.

Every run is a training run of `configs/quickstart.yaml`, or of a configuration of its size, in a folder of its own;
what is in the folder already is not run again, so a study that was cut off goes on.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import add_json_file
from jaxpar.cli import Parser, positive
from jaxpar.config import load_config
from jaxpar.layout.checks.validate import validate

CONFIG = Path(__file__).parents[1] / "configs/quickstart.yaml"
SETTINGS = {
    "parallel.tensor": 1,
    "parallel.context": 1,
    "data.batch_size": 4,
    "evaluation.every": 200,
    "evaluation.sample_tokens": 0,
    "checkpoint.every": 1_000_000,
}


def add_study(parser: Parser, folder: str) -> None:
    """`--folder`, `--seeds`, `--steps` and `--json`."""
    parser.add_argument("--folder", type=Path, default=Path(folder), help="where the runs are")
    parser.add_argument("--seeds", type=positive, default=3)
    parser.add_argument("--steps", type=positive, default=400)
    add_json_file(parser)


def validation_loss(
    options: Namespace,
    name: str,
    seed: int,
    settings: Mapping[str, Any],
    command: Sequence[str] = ("jaxpar.train",),
    configuration: Path = CONFIG,
) -> float:
    """The validation loss after the last step of a run, in nats a byte; it is trained where it is not in the folder.

    Args:
        options: Those of `add_study`.
        name: Of the run, with what it differs in from others.
        seed: Of its weights and batches.
        settings: What it changes of the configuration, beside `SETTINGS`.
        command: The module that trains, and arguments that come first.
        configuration: The file that is trained.

    Raises:
        UserError: A setting is not one of a run.
    """
    name = f"{name}-{options.steps}-{seed}"
    summary = options.folder / name / "summary.json"
    if not summary.exists():
        own = {"run.dir": options.folder, "run.name": name, "run.steps": options.steps, "run.seed": seed}
        overrides = [f"{key}={value}" for key, value in {**SETTINGS, **own, **settings}.items()]
        validate(load_config(configuration, overrides))
        words = [word for override in overrides for word in ("--set", override)]
        run = [sys.executable, "-m", *command, "--config", str(configuration), *words]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
    return float(json.loads(summary.read_text())["eval_loss"])


def table(losses: Mapping[str, Sequence[float]], exact: str, heading: str, digits: int = 2) -> str:
    """Per name the mean over seeds, and how far each seed is from the same seed of `exact`, in percent with so many
    `digits`."""
    wide = max(map(len, (*losses, heading))) + 2
    lines = [f"{heading:{wide}}{'validation':>10}{'mean':>9}  by seed"]
    for name, own in losses.items():
        pairs = zip(own, losses.get(exact, own), strict=True)
        apart = [100 * (loss / reference - 1) for loss, reference in pairs]
        lines.append(
            f"{name:{wide}}{statistics.mean(own):10.4f}{statistics.mean(apart):+8.{digits}f}%  "
            + ", ".join(f"{one:+.{digits}f}%" for one in apart)
        )
    return "\n".join(lines)
