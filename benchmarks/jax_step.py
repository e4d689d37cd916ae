"""Times one training step of a configuration on this machine's devices; prints one JSON object.

    python -m benchmarks.jax_step --config configs/llama3_1b.yaml --set data.batch_size=8

Nothing is written, and no input pipeline runs: a few generated batches repeat, placed ahead of the step as in the
training loop. `host_share` is the share of a step that the host needs to dispatch it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from jaxpar.cli import Parser, command
from jaxpar.config import load_config


def measure(config_file: str | None, overrides: Sequence[str], *, warmup: int, steps: int) -> dict[str, Any]:
    """Median time, throughput, MFU and memory of a step, and the first step and compilation apart."""
    import jax

    from jaxpar.data import batch_rows
    from jaxpar.layers.declaration.adaptation import adaptation_of
    from jaxpar.layout.choices.matmul import multiplies
    from jaxpar.model.flops import flops_per_step, mfu, seen_pairs
    from jaxpar.observe.memory import memory_kind, peak_bytes
    from jaxpar.training.run.run import Run

    trainer = Run(load_config(config_file, overrides))
    config, placer = trainer.config, trainer.placer
    rows = [batch_rows(trainer.data.train, index, config.data.batch_size, placer.rows) for index in range(4)]
    began = time.perf_counter()
    compiled = trainer.compiled
    compile_seconds = time.perf_counter() - began
    state, times, host = trainer.state, [], []
    batch = placer(rows[0])
    for step in range(warmup + steps):
        start = time.perf_counter()
        state, metrics = compiled(state, batch, trainer.functions.arguments)
        batch = placer(rows[(step + 1) % len(rows)])
        dispatched = time.perf_counter()
        jax.block_until_ready(metrics)
        times.append(time.perf_counter() - start)
        host.append(dispatched - start)
    seconds = statistics.median(times[warmup:])
    tokens = config.data.batch_size * config.data.sequence_length
    share = config.data.batch_size / len(placer.rows)
    each = [seen_pairs(config.model, r, packed=config.data.packed) for r in rows]
    pairs = {limit: round(share * statistics.mean(one[limit] for one in each)) for limit in each[0]}
    flops = flops_per_step(config.model, tokens, pairs, trainer.data.vocab, adaptation_of(config))
    peak = trainer.peak_flops
    return {
        "device": f"{trainer.plan.axes.devices} x {trainer.mesh.devices.flat[0].device_kind}",
        "versions": {"jax": jax.__version__, "python": sys.version.split()[0]},
        "tokens_per_step": tokens,
        "step_time_s": seconds,
        "tokens_per_second": tokens / seconds,
        "mfu": None if peak is None else mfu(flops, seconds, trainer.plan.axes.devices, peak),
        "model_flops_per_step": flops,
        "compile_s": compile_seconds,
        "first_step_s": times[0],
        "host_share": statistics.median(host[warmup:]) / seconds,
        "peak_bytes": peak_bytes(),
        "memory_kind": memory_kind(),
        "predicted_bytes": trainer.predicted_bytes,
        "attention": ", ".join(choice.name for choice in trainer.plan.attention.values()),
        "matmuls": multiplies(config, trainer.mesh.devices.flat[0]),
        "loss": float(metrics.loss),
    }


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.jax_step", __doc__)
    parser.add_config()
    parser.add_argument("--warmup", type=int, default=3, help="steps before the clock counts")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    options = parser.parse_args(arguments)
    result = measure(options.config, options.overrides, warmup=options.warmup, steps=options.steps)
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
