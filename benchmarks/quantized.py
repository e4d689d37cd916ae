"""Validation loss of the quickstart's model with quantized messages beside exact ones, over seeds.

    python -m benchmarks.quantized --folder runs/quantized --seeds 3 --steps 400

Runs are on four ranks of fsdp in one node, where int4 gradients have 4 bits everywhere. The exact run on two ranks adds
in another order: how far it is from the one on four is what a difference of nothing looks like. A study that was cut
off goes on (`benchmarks.study`).
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.results import write_json
from benchmarks.study import add_study, table, validation_loss
from jaxpar.cli import Parser, command

EXACT = "exact"
MESSAGES: dict[str, dict[str, str | int]] = {
    EXACT: {},
    "exact on two ranks": {"parallel.fsdp": 2},
    "weights int8": {"parallel.quantized.weights": "int8"},
    "weights float8": {"parallel.quantized.weights": "float8_e4m3fn"},
    "gradients int8": {"parallel.quantized.gradients": "int8"},
    "gradients int4": {"parallel.quantized.gradients": "int4"},
    "both int8": {"parallel.quantized.weights": "int8", "parallel.quantized.gradients": "int8"},
    "weights int8, gradients int4": {"parallel.quantized.weights": "int8", "parallel.quantized.gradients": "int4"},
}


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.quantized", __doc__)
    add_study(parser, "runs/quantized")
    parser.add_argument("--messages", nargs="+", choices=tuple(MESSAGES), default=tuple(MESSAGES))
    options = parser.parse_args(arguments)
    losses: dict[str, list[float]] = {name: [] for name in options.messages}
    for seed in range(options.seeds):
        for name in options.messages:
            run = name.replace(",", "").replace(" ", "-")
            losses[name].append(validation_loss(options, run, seed, {"parallel.fsdp": 4} | MESSAGES[name]))
            print(f"{name}, seed {seed}: {losses[name][-1]:.4f}", flush=True)
    write_json(options.json, losses)
    print(table(losses, EXACT, "messages"))


if __name__ == "__main__":
    main()
