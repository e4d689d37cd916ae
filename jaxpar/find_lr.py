"""`python -m jaxpar.find_lr --config X`: find a learning rate by a short run in which it rises."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.cli import Parser, command
from jaxpar.config import Config, UserError

if TYPE_CHECKING:
    from jaxpar.training.rate_sweep import Sweep

NAME = "learning-rate"
EVERY = 10
"""Steps between two printed lines."""


@command()
def main(arguments: Sequence[str]) -> int:
    """Find a rate from the command line; returns the exit code: 0 found, 1 no rate can be suggested, 2 a user error."""
    parser = Parser(
        "jaxpar.find_lr",
        "Train for a few steps from the initial weights while optimizer.learning_rate rises exponentially, "
        "and suggest a rate from the losses. The run's own folder is not touched.",
    )
    parser.add_config()
    parser.add_argument("--low", type=float, default=1e-6, help="first rate (default 1e-6)")
    parser.add_argument("--high", type=float, default=1.0, help="last rate (default 1)")
    parser.add_argument("--steps", type=int, default=120, help="steps of the sweep (default 120)")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        help=f"where {NAME}.png and {NAME}.json go (default: the run's folder with -{NAME} at its end)",
    )
    return _find(parser.parse_args(arguments))


def _find(options: argparse.Namespace) -> int:
    from jaxpar.config import load_config

    config = load_config(options.config, options.overrides)
    folder = options.out or Path(config.run.dir).expanduser() / f"{config.run.name}-{NAME}"
    _check_writable(folder)
    import jax

    from jaxpar.training.rate_sweep import sweep_rates

    sweep = sweep_rates(config, low=options.low, high=options.high, steps=options.steps, progress=_tell)
    if jax.process_index() == 0:
        _conclude(sweep, config, folder)
    return 0 if sweep.suggestion else 1


def _tell(step: int, rate: float, loss: float) -> None:
    import jax

    if jax.process_index() != 0:
        return
    if step == 1:
        print(f"{'step':>7}{'rate':>12}{'loss':>10}")
    if step == 1 or step % EVERY == 0:
        print(f"{step:>7}{rate:>12.2e}{loss:>10.4f}", flush=True)


def _conclude(sweep: Sweep, config: Config, folder: Path) -> None:
    """Write the plot and the numbers, and print the result."""
    from jaxpar.config import config_to_dict
    from jaxpar.observe.files import write_atomically
    from jaxpar.observe.writers.sweep_plot import draw_sweep

    suggestion = sweep.suggestion
    numbers = json.dumps({"config": config_to_dict(config), **sweep.to_json()}, indent=1, allow_nan=False) + "\n"
    picture = draw_sweep(
        sweep.rates,
        sweep.losses,
        sweep.smooth,
        suggested=suggestion.rate if suggestion else None,
        lowest=suggestion.lowest if suggestion else None,
        title=f"{config.run.name}: {config.optimizer.name}",
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = _free_name(folder)
        write_atomically(path.with_suffix(".png"), picture)
        write_atomically(path.with_suffix(".json"), numbers.encode())
    except OSError as error:
        raise UserError(f"--out: {folder} cannot be written ({error.strerror})") from error
    print(f"\nThe sweep ended because {sweep.ended}.")
    if suggestion is None:
        print("No rate is suggested.")
    else:
        print("Suggested: " + " ".join(f"--set {key}={value:g}" for key, value in suggestion.settings.items()))
        print(f"  {suggestion.reason[0].upper()}{suggestion.reason[1:]}.")
    print(f"  {path.with_suffix('.png')} shows the sweep, {path.with_suffix('.json')} has its numbers.")


def _check_writable(folder: Path) -> None:
    """Check, before minutes are spent on the sweep, that the nearest existing folder can be written to."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"--out: {folder} cannot be written, because {there} is not a folder that can be")


def _free_name(folder: Path) -> Path:
    """A name without suffix that no earlier sweep has, so that nothing is overwritten."""
    names = (NAME, *(f"{NAME}-{suffix}" for suffix in range(2, 10_000)))
    return next(folder / name for name in names if not any(folder.glob(f"{name}.*")))


if __name__ == "__main__":
    sys.exit(main())
