"""Validation loss of the quickstart's model trained on islands beside data parallelism, at equal tokens, over seeds.

    python -m benchmarks.islands --seeds 3 --steps 120

Islands split the rows of each batch, so that every run sees the same tokens; the last step is one of an exchange. The
run of data parallelism is on one device, which has its numbers but for the order of sums. The run of a quarter of the
rows is that of one of four islands without the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.results import add_json_file, write_json
from benchmarks.study import CONFIG, table
from jaxpar.cli import Parser, command, positive

REFERENCE, QUARTER = "data parallelism", "a quarter of the rows"
SIZE = {"parallel.tensor": 1, "parallel.context": 1, "parallel.fsdp": 1, "data.batch_size": 8,
        "data.sequence_length": 128}  # fmt: skip
COUNTS, PERIODS = (2, 4), (10, 30)
RUNS: dict[str, dict[str, Any]] = {REFERENCE: {}, QUARTER: {}} | {
    f"{count} islands, H {every}": {"parallel.islands": count, "islands.every": every}
    for every in PERIODS
    for count in COUNTS
}


def settings_of(name: str, more: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a run; of `more`, those of islands are for the island runs."""
    if RUNS[name]:
        return {**RUNS[name], **more}
    settings = {key: value for key, value in more.items() if not key.startswith("islands.")}
    rows = int({**SIZE, **settings}["data.batch_size"])
    return ({"evaluation.batches": 32} | settings | {"data.batch_size": rows // 4}) if name == QUARTER else settings


def trained(
    settings: Mapping[str, Any], seeds: Sequence[int], steps: int, starts: Mapping[int, Any], first: int = 0
) -> Iterator[tuple[int, float, Any]]:
    """(seed, validation loss in nats a byte, global weights) after the last step, for each seed of weights and rows;
    the runs share a compiled step.

    Args:
        settings: of the run.
        seeds: whose weights and rows they are.
        steps: of the run.
        starts: weights to begin with, by seed; others begin with initial ones.
        first: number of the first batch.
    """
    import jax

    from jaxpar.data import batch_rows, open_data
    from jaxpar.training.run.batches import validation_metrics
    from jaxpar.training.run.run import Run

    overrides = [f"{key}={value}" for key, value in {"run.steps": steps, **SIZE, **settings}.items()]
    run = Run(CONFIG, overrides=overrides, devices=jax.devices()[: settings.get("parallel.islands", 1)])
    layout, functions, config = run.layout, run.functions, run.config
    made = jax.jit(layout.initial_state, out_shardings=layout.state_shardings(run.mesh))
    for seed in seeds:
        arguments = functions.placed(layout.arguments._replace(seed=np.uint32(seed)))
        state, data = made(arguments), open_data(config.data, vocab=config.model.vocab, seed=seed)
        if seed in starts:
            readers = jax.tree.map(lambda weight: lambda part: weight[part], starts[seed])
            state = functions.residency.with_weights(state, readers)
        for step in range(first, first + steps):
            batch = run.placer(batch_rows(data.train, step, config.data.batch_size, run.placer.rows))
            state, _ = functions.residency.advance(run.compiled, state, batch, arguments)
        loss = validation_metrics(config, functions, state.master, data, run.placer)["loss"]
        yield seed, loss, jax.device_get(state.master)


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    from jaxpar.config import DistributedConfig
    from jaxpar.distributed.devices import prepare_devices

    parser = Parser("benchmarks.islands", __doc__)
    parser.add_argument("--seeds", type=positive, default=3)
    parser.add_argument("--steps", type=positive, default=120)
    parser.add_argument("--warm", type=positive, help="steps of data parallelism whose weights all runs begin with")
    parser.add_argument("--runs", nargs="*", default=list(RUNS), choices=list(RUNS), metavar="RUN", help="some of them")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings of all runs")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    prepare_devices(max(COUNTS), DistributedConfig())
    more = dict(pair.split("=", 1) for pair in options.set)
    losses: dict[str, list[float]] = {}
    warm, seeds, starts = options.warm or 0, range(options.seeds), {}
    if warm:
        starts = {seed: weights for seed, _, weights in trained(settings_of(REFERENCE, more), seeds, warm, {})}
    for name in options.runs:
        each = trained(settings_of(name, more), seeds, options.steps, starts, warm)
        losses[name] = [loss for _, loss, _ in each]
        print(f"{name}: {', '.join(f'{loss:.4f}' for loss in losses[name])}", flush=True)
        write_json(options.json, losses)
    print(table(losses, REFERENCE, "run"))


if __name__ == "__main__":
    main()
