"""Validation loss of the quickstart's model in each FP8 recipe beside none, over seeds: how accurate FP8 training is.

    python -m benchmarks.fp8 --folder runs/fp8 --seeds 3 --steps 400

Runs are on one device, and a study that was cut off goes on (`benchmarks.study`). `--outlier 1048576` plants
a channel of that magnitude (`benchmarks.fp8.planted`) in what the quantized matmuls read, and then all layers are
quantized; `--embed 512` makes the model wider, of several tiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.results import write_json
from benchmarks.study import add_study, table, validation_loss
from jaxpar.cli import Parser, command

EXACT = "none"
RECIPES = (EXACT, "fp8_current", "fp8_delayed", "fp8_block", "mxfp8")


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.fp8", __doc__)
    add_study(parser, "runs/fp8")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument("--outlier", type=float, help="magnitude of a channel that is planted; by default none")
    parser.add_argument("--embed", type=int, default=128, help="width of the model; feed-forwards have three times it")
    options = parser.parse_args(arguments)
    losses: dict[str, list[float]] = {recipe: [] for recipe in options.recipes}
    for seed in range(options.seeds):
        for recipe in options.recipes:
            losses[recipe].append(loss_of(options, recipe, seed))
            print(f"{recipe}, seed {seed}: {losses[recipe][-1]:.4f}", flush=True)
    write_json(options.json, losses)
    print(table(losses, EXACT, "recipe"))


def loss_of(options: argparse.Namespace, recipe: str, seed: int) -> float:
    """The validation loss of a recipe's run."""
    planted = recipe != EXACT and options.outlier is not None
    settings = {
        "parallel.fsdp": 1, "precision.matmul": "null" if recipe == EXACT else recipe,
        "model.embed": options.embed, "model.mlp": 3 * options.embed,
    }  # fmt: skip
    name = f"{recipe}-{options.embed}"
    if not planted:
        return validation_loss(options, name, seed, settings)
    settings |= {"precision.matmul_options": "{first_layers: 0, last_layers: 0}"}
    command = "benchmarks.fp8.planted", str(options.outlier)
    return validation_loss(options, f"{name}-outlier{options.outlier:g}", seed, settings, command)


if __name__ == "__main__":
    main()
