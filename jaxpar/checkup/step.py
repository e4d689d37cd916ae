"""Runs a tiny training step on all devices, with the trainer's own code."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from jaxpar.checkup.finding import Finding
from jaxpar.config import Config, DataConfig, ModelConfig, OptimizerConfig, ParallelConfig, RunConfig
from jaxpar.distributed.devices import Device
from jaxpar.pages.units import seconds
from jaxpar.training.run.run import Run

VOCAB = 64
STEPS = 4
TOLERANCE = 1.0
"""Largest deviation of the first loss from that of uniform predictions, in nats per token."""


def tiny_config(devices: int) -> Config:
    """A decoder of some thousand weights, sharded over all devices."""
    return Config(
        run=RunConfig(steps=STEPS, compile_cache=None),
        model=ModelConfig(layers=2, embed=64, heads=4, mlp=128, vocab=VOCAB, vocab_multiple=VOCAB),
        parallel=ParallelConfig(fsdp=-1),
        optimizer=OptimizerConfig(warmup_steps=1, learning_rate=1e-2),
        data=DataConfig(source="synthetic", sequence_length=64, batch_size=devices),
    )


def check_step(devices: Sequence[Device]) -> Iterator[Finding]:
    """Take a few steps of `tiny_config` and look at the loss."""
    trainer = Run(tiny_config(len(devices)), devices=devices)
    losses = [float(trainer.step().loss)]
    began = time.perf_counter()
    losses += [float(trainer.step().loss) for _ in range(STEPS - 1)]
    each = (time.perf_counter() - began) / (STEPS - 1)
    uniform_loss = math.log(VOCAB)
    if not all(map(math.isfinite, losses)) or abs(losses[0] - uniform_loss) > TOLERANCE:
        yield Finding(
            "step", "fail", f"the loss of a tiny model is {losses}, and should start near {uniform_loss:.2f}",
            "the devices or the installation compute wrongly: compare with JAX_PLATFORMS=cpu",
        )  # fmt: skip
        return
    yield Finding(
        "step", "ok",
        f"a tiny model compiled in {seconds(trainer.timer.compile_seconds)}, {seconds(each)} per step, "
        f"loss {losses[0]:.3f} (uniform predictions: {uniform_loss:.3f}) to {losses[-1]:.3f}",
    )  # fmt: skip
