"""Held-out loss of the quickstart's model trained on islands beside data parallelism, at equal tokens, over seeds.

    python -m benchmarks.islands --folder runs/islands --seeds 3 --steps 120

Islands split the rows of each batch, so that every run sees the same tokens; the last step is one of an exchange. The
run of data parallelism is on one device, which has its numbers but for the order of sums. A study that was cut off goes
on (`benchmarks.held_out`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.held_out import add_study, held_out, table
from benchmarks.results import write_json
from jaxpar.cli import Parser, command

REFERENCE = "data parallelism"
SIZE = {"parallel.fsdp": 1, "data.batch_size": 8, "data.sequence_length": 128}
RUNS: dict[str, dict[str, Any]] = {REFERENCE: {}} | {
    f"{count} islands, H {every}": {"parallel.islands": count, "islands.every": every}
    for count in (2, 4)
    for every in (10, 30)
}


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.islands", __doc__)
    add_study(parser, "runs/islands")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings of every island run")
    options = parser.parse_args(arguments)
    more = dict(pair.split("=", 1) for pair in options.set)
    losses: dict[str, list[float]] = {name: [] for name in RUNS}
    for seed in range(options.seeds):
        for name, settings in RUNS.items():
            own = settings | (more if settings else {})
            run = "-".join([name, *(f"{key}-{value}" for key, value in own.items() if key in more)])
            losses[name].append(held_out(options, run.replace(",", "").replace(" ", "-"), seed, SIZE | own))
            print(f"{name}, seed {seed}: {losses[name][-1]:.4f}", flush=True)
    write_json(options.json, losses)
    print(table(losses, REFERENCE, "run"))


if __name__ == "__main__":
    main()
