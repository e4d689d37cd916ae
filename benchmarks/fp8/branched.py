"""Validation loss in each FP8 recipe from the weights of one bfloat16 run, at once and after a few steps.

    python -m benchmarks.fp8.branched --folder runs/fp8 --seeds 3 --steps 400 --after 50

Whole runs differ by the order of their sums too, by about 1% of the loss at this size, which hides what a format costs
(`benchmarks.fp8`). Here all recipes begin with the same weights and see the same batches at a small learning rate, so
that what rounding changes has few steps to grow.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fp8.__main__ import EXACT, RECIPES
from benchmarks.results import write_json
from benchmarks.study import CONFIG, SETTINGS, add_study, table, validation_loss
from jaxpar.cli import Parser, command

BASE = {"parallel.fsdp": 1, "precision.compute": "bfloat16", "optimizer.final_fraction": 0}
"""What the run differs in from `SETTINGS`."""
BRANCH = SETTINGS | {
    "parallel.fsdp": 1, "precision.compute": "bfloat16", "optimizer.name": "adamw", "optimizer.learning_rate": 3e-4,
    "optimizer.warmup_steps": 0, "optimizer.schedule": "constant", "evaluation.batches": 64, "run.seed": 7,
}  # fmt: skip
"""Of each branch, which has an optimizer without history."""


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.fp8.branched", __doc__)
    add_study(parser, "runs/fp8")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument("--after", type=int, default=50, help="steps of each branch; by default 50")
    options = parser.parse_args(arguments)
    recipes = list(dict.fromkeys((EXACT, *options.recipes)))
    at_once: dict[str, list[float]] = {recipe: [] for recipe in recipes}
    after: dict[str, list[float]] = {recipe: [] for recipe in recipes}
    for seed in range(options.seeds):
        validation_loss(options, "bfloat16", seed, BASE)
        for recipe in recipes:
            begin, end = branched(options, seed, recipe)
            at_once[recipe].append(begin)
            after[recipe].append(end)
            print(f"{recipe}, seed {seed}: {begin:.5f}, after {options.after} steps {end:.5f}", flush=True)
    write_json(options.json, {"at_once": at_once, "after": after})
    print(table(at_once, EXACT, "same weights", digits=3))
    print(table(after, EXACT, f"{options.after} steps", digits=3))


def branched(options: argparse.Namespace, seed: int, recipe: str) -> tuple[float, float]:
    """Validation losses of a recipe with the weights of a seed's run, before and after `options.after` steps."""
    from jaxpar import Trainer

    source = Path(options.folder) / f"bfloat16-{options.steps}-{seed}"
    settings = BRANCH | {
        "run.dir": options.folder, "run.name": f"branch-{recipe}-{seed}", "run.init_from": source,
        "run.steps": max(1, options.after), "precision.matmul": "null" if recipe == EXACT else recipe,
    }  # fmt: skip
    trainer = Trainer(CONFIG, overrides=[f"{key}={value}" for key, value in settings.items()])
    begin = trainer.evaluate()
    for _ in range(options.after):
        trainer.step()
    return begin, trainer.evaluate()


if __name__ == "__main__":
    main()
