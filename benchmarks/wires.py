"""Held-out loss of the quickstart's model with quantised messages beside exact ones, over seeds.

    python -m benchmarks.wires --folder runs/wires --seeds 3 --steps 400

Runs are on four ranks of fsdp in one node, where int4 gradients have 4 bits everywhere. The exact run on two ranks adds
in another order: how far it is from the one on four is what a difference of nothing looks like. A study that was cut
off goes on (`benchmarks.held_out`).
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.held_out import add_study, held_out, table
from benchmarks.results import write_json
from jaxpar.cli import Parser, command

EXACT = "exact"
WIRES: dict[str, dict[str, str | int]] = {
    EXACT: {},
    "exact on two ranks": {"parallel.fsdp": 2},
    "weights int8": {"precision.weight_wire": "int8"},
    "weights float8": {"precision.weight_wire": "float8_e4m3fn"},
    "gradients int8": {"precision.gradient_wire": "int8"},
    "gradients int4": {"precision.gradient_wire": "int4"},
    "both int8": {"precision.weight_wire": "int8", "precision.gradient_wire": "int8"},
    "weights int8, gradients int4": {"precision.weight_wire": "int8", "precision.gradient_wire": "int4"},
}


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.wires", __doc__)
    add_study(parser, "runs/wires")
    parser.add_argument("--wires", nargs="+", choices=tuple(WIRES), default=tuple(WIRES))
    options = parser.parse_args(arguments)
    losses: dict[str, list[float]] = {wire: [] for wire in options.wires}
    for seed in range(options.seeds):
        for wire in options.wires:
            name = wire.replace(",", "").replace(" ", "-")
            losses[wire].append(held_out(options, name, seed, {"parallel.fsdp": 4} | WIRES[wire]))
            print(f"{wire}, seed {seed}: {losses[wire][-1]:.4f}", flush=True)
    write_json(options.json, losses)
    print(table(losses, EXACT, "messages"))


if __name__ == "__main__":
    main()
