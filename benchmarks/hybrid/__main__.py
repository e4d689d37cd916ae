"""Validation loss of the quickstart's hybrid beside the dense model of as many parameters, over seeds.

    python -m benchmarks.hybrid --folder runs/hybrid --seeds 3 --steps 100

All are trained as `configs/quickstart_hybrid.yaml` says, on 8 devices with 4 context ranks. The dense model has a wider
feed-forward, which makes up for the weights of three mixers with a state. The control is the hybrid whose mixers forget
everything (`benchmarks.hybrid.forgetful`): if it is not clearly worse, the others show nothing of states. A study that
was cut off goes on (`benchmarks.study`).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.hybrid import forgetful
from benchmarks.results import write_json
from benchmarks.study import add_study, table, validation_loss
from jaxpar.cli import Parser, command
from jaxpar.config.parts import MIXERS

CONFIG = Path(__file__).parents[2] / "configs/quickstart_hybrid.yaml"
LIKE_THE_CONFIGURATION = {"parallel.context": 4, "data.batch_size": 32}
DENSE, HYBRID, CONTROL = "dense", "hybrid", "hybrid that forgets"
MODELS: dict[str, dict[str, Any]] = {
    DENSE: {"model.kinds": "{}", "model.pattern": "null", "model.mlp": 424},
    HYBRID: {},
    CONTROL: {"model.kinds": "{state: {mixer: forgetful}, full: {}}"},
}
"""Settings of each; 424 of a feed-forward, where the hybrid has 384, make 0.15% more parameters than it has."""


def loss_of(options: Namespace, name: str, seed: int, **others: Any) -> float:
    """The validation loss of a run of one of `MODELS`, with `others` of its settings."""
    command = (forgetful.__name__ if name == CONTROL else "jaxpar.train",)
    settings = LIKE_THE_CONFIGURATION | MODELS[name] | others
    return validation_loss(options, name.replace(" ", "-"), seed, settings, command, CONFIG)


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.hybrid", __doc__)
    add_study(parser, "runs/hybrid")
    parser.set_defaults(steps=100)
    options = parser.parse_args(arguments)
    MIXERS[forgetful.NAME] = forgetful.ENTRY
    losses: dict[str, list[float]] = {name: [] for name in MODELS}
    for seed in range(options.seeds):
        for name in MODELS:
            losses[name].append(loss_of(options, name, seed))
            print(f"{name}, seed {seed}: {losses[name][-1]:.4f}", flush=True)
    write_json(options.json, losses)
    print(table(losses, DENSE, "model"))


if __name__ == "__main__":
    main()
