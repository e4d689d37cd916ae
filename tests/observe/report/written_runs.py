"""Folders of runs as the listeners of a run write them, made without training."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxpar.config import Config, DataConfig, OptimizerConfig, RunConfig, config_to_yaml
from jaxpar.config.plan import PLAN_VERSION
from jaxpar.observe.environment import EnvironmentFile
from jaxpar.observe.events import Listeners, RunInfo, StepRecord, Summary
from jaxpar.observe.writers.event_log import EventLog
from jaxpar.observe.writers.jsonl import JsonLines
from jaxpar.observe.writers.summary import SummaryFile

BASELINE = 2.45
PLAN = [
    ("mesh", "fsdp 2, tensor 2", "4 x cpu"),
    ("parameters", "919k", "239k per device at rest"),
    ("attention", "xla", "not cudnn: it needs <an NVIDIA GPU> & the platform is cpu"),
]


def loss_at(step: int, floor: float = 2.2) -> float:
    """A loss that falls, with a ripple."""
    return floor + 3.2 * math.exp(-step / 15) + 0.05 * math.sin(step)


def write_run(
    folder: Path,
    *,
    steps: int = 60,
    until: int | None = None,
    floor: float = 2.2,
    optimizer: str = "adamw",
    sources: dict[str, float] | None = None,
    init_from: str | None = None,
    came_from: tuple[str, ...] = (),
    **changes: Any,
) -> Path:
    """A run of `steps` in `folder` that logs every second and evaluates every tenth; one with `until` is killed there.

    `sources` are those of the data, with their weights, and `changes` fields of the records.
    """
    folder.mkdir(parents=True)
    config = Config(
        run=RunConfig(name=folder.name, dir=str(folder.parent), steps=steps, init_from=init_from),
        optimizer=replace(OptimizerConfig(), name=optimizer),  # pyright: ignore[reportArgumentType]
        data=DataConfig(source="tokens", sources=sources, batch_size=16, sequence_length=256),
    )
    (folder / "config.yaml").write_text(config_to_yaml(config))
    (folder / "plan.json").write_text(
        json.dumps({"version": PLAN_VERSION, "plan": {"axes": {"fsdp": 2, "tensor": 2}, "zero": 3}})
    )
    everyone = Listeners([JsonLines(), EventLog(), EnvironmentFile(), SummaryFile()])
    reported = dict(config={}, plan={}, rows=PLAN, brief=[], folder=str(folder), steps=steps, baseline_loss=BASELINE)
    everyone.start(RunInfo(**reported, came_from=came_from))  # pyright: ignore[reportArgumentType]
    everyone.message("Compiled in 4.5 s; the step needs 87.9 MiB per device.")
    last = steps if until is None else until
    for step in range(2, last + 1, 2):
        evaluated = loss_at(step, floor) + 0.1 if step % 10 == 0 else None
        values = dict(
            loss=loss_at(step, floor), grad_norm=1 + 8 * math.exp(-step / 6),
            learning_rate=1e-3 * min(1, (step - 2) / 20),
            tokens_per_second=4096 / 0.5, tokens_per_second_per_device=1024 / 0.5, step_time_s=0.5, mfu=None,
            memory_bytes=2**30 + step * 2**20, eta_s=0.0, memory_kind="host", eval_loss=evaluated,
        )  # fmt: skip
        everyone.step(StepRecord(step=step, **{**values, **changes}))
        if step % 20 == 0:
            everyone.saved(step, str(folder / "checkpoints" / f"{step:08}"))
    if until is None:
        everyone.sample('"""Get useful', " information </script><b>")
        everyone.end(
            Summary(
                steps=steps, loss=loss_at(steps, floor), eval_loss=loss_at(steps, floor) + 0.1, baseline_loss=BASELINE,
                tokens=steps * 4096, train_seconds=30.0, compile_seconds=4.5, first_step_seconds=0.7,
                steady_step_seconds=0.5, peak_bytes=3 * 2**30, predicted_bytes=88 * 2**20, host_step_seconds=0.01,
                memory_kind="host",
            )
        )  # fmt: skip
    everyone.close()
    if until is not None:  # a kill closes nothing
        events = (folder / "events.jsonl").read_text().splitlines(keepends=True)
        (folder / "events.jsonl").write_text("".join(events[:-1]))
    return folder
