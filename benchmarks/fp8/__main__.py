"""Held-out loss of the quickstart's model in each FP8 recipe beside none, over seeds: how accurate FP8 training is.

    python -m benchmarks.fp8 --folder runs/fp8 --seeds 3 --steps 400

Every run is a training run of `configs/quickstart.yaml` on one device, in a folder of its own; what is in the folder
already is not run again, so a study that was cut off goes on. `--outlier 1048576` plants a channel of that magnitude
(`benchmarks.fp8.planted`) in what the quantised matmuls read, and then all layers are quantised; `--embed 512` makes
the model wider, of several tiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command

ROOT = Path(__file__).parents[2]
EXACT = "none"
RECIPES = (EXACT, "fp8_current", "fp8_delayed", "fp8_block", "mxfp8")
SETTINGS = {
    "parallel.fsdp": 1,
    "parallel.tensor": 1,
    "parallel.context": 1,
    "data.batch_size": 4,
    "evaluation.every": 200,
    "evaluation.sample_tokens": 0,
    "checkpoint.every": 1_000_000,
}


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.fp8", __doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/fp8"), help="where the runs are")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument("--outlier", type=float, help="magnitude of a channel that is planted; by default none")
    parser.add_argument("--embed", type=int, default=128, help="width of the model; feed-forwards have three times it")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    losses: dict[str, list[float]] = {recipe: [] for recipe in options.recipes}
    for seed in range(options.seeds):
        for recipe in options.recipes:
            losses[recipe].append(held_out(options, recipe, seed))
            print(f"{recipe}, seed {seed}: {losses[recipe][-1]:.4f}", flush=True)
    write_json(options.json, losses)
    print(table(losses))


def held_out(options: argparse.Namespace, recipe: str, seed: int) -> float:
    """The held-out loss after the last step of a run, in nats a byte; it is trained where it is not in the folder."""
    planted = recipe != EXACT and options.outlier is not None
    name = f"{recipe}-{options.embed}-{options.steps}-{seed}" + (f"-outlier{options.outlier:g}" if planted else "")
    summary = options.folder / name / "summary.json"
    if not summary.exists():
        settings = SETTINGS | {
            "run.dir": options.folder, "run.name": name, "run.steps": options.steps, "run.seed": seed,
            "precision.matmul": "null" if recipe == EXACT else recipe,
            "model.embed": options.embed, "model.mlp": 3 * options.embed,
        }  # fmt: skip
        if planted:
            settings |= {"precision.matmul_except": "{first_layers: 0, last_layers: 0}"}
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        module = ["benchmarks.fp8.planted", str(options.outlier)] if planted else ["jaxpar.train"]
        run = [sys.executable, "-m", *module, "--config", str(ROOT / "configs/quickstart.yaml"), *words]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
    return float(json.loads(summary.read_text())["eval_loss"])


def table(losses: Mapping[str, Sequence[float]]) -> str:
    """Per recipe the mean over seeds, and how far each seed is from the same seed without FP8."""
    lines = [f"{'recipe':14}{'held-out':>10}{'mean':>9}  by seed"]
    for recipe, own in losses.items():
        pairs = zip(own, losses.get(EXACT, own), strict=True)
        apart = [100 * (loss / exact - 1) for loss, exact in pairs]
        lines.append(
            f"{recipe:14}{statistics.mean(own):10.4f}{statistics.mean(apart):+8.2f}%  "
            + ", ".join(f"{one:+.2f}%" for one in apart)
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
