"""Whole runs of the small decoder in temporary folders, in this process or by the command line."""

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import jax

from jaxpar.checkpoint import Checkpointer
from jaxpar.config import CheckpointConfig, Config, EvaluationConfig, RunConfig, config_to_yaml
from jaxpar.observe.events import Listener, StepRecord, Summary
from jaxpar.observe.writers.jsonl import JsonLines, read_metrics
from jaxpar.training.run import loop
from jaxpar.training.run.run import Run
from jaxpar.training.run.trainer import Trainer
from jaxpar.training.step.train_step import TrainStep
from tests.small_run import layout_of, small

ROOT = Path(__file__).parents[2]
MESH = {"fsdp": 2, "context": 2, "tensor": 2}


def run_config(folder: Path, steps: int, **sections: dict[str, Any]) -> Config:
    """The small decoder as a run in `folder`: every step is logged, and `steps` does not bend the schedule."""
    return small(
        **{
            **sections,
            "run": {"dir": str(folder), "steps": steps, "log_every": 1, **sections.get("run", {})},
            "optimizer": {"decay_steps": 30, **sections.get("optimizer", {})},
            "evaluation": {"batches": 0, **sections.get("evaluation", {})},
        }
    )


class Recorder(Listener):
    """What a run reported."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.progresses: list[tuple[str, int, int]] = []
        self.records: list[StepRecord] = []
        self.saves: list[int] = []
        self.evaluations: list[tuple[int, float]] = []
        self.summary: Summary | None = None

    def step(self, record: StepRecord) -> None:
        self.records.append(record)

    def evaluation(self, step: int, loss: float, baseline: float | None) -> None:
        self.evaluations.append((step, loss))

    def saved(self, step: int, path: str) -> None:
        self.saves.append(step)

    def message(self, text: str) -> None:
        self.messages.append(text)

    def end(self, summary: Summary) -> None:
        self.summary = summary

    def progress(self, text: str, done: int, total: int) -> None:
        self.progresses.append((text, done, total))


class SharingRun(Run):
    """Runs of one model on one layout share what they compile: here a run takes less time than its compilation."""

    functions_of: ClassVar[dict[Config, TrainStep]] = {}
    compiled_of: ClassVar[dict[Config, Any]] = {}

    def __init__(self, config: Config | str | Path, **options: Any):
        super().__init__(config, **options)
        config = self.config
        assert config.optimizer.decay_steps is not None, "the compiled step must not depend on run.steps"
        elsewhere = {"checkpoint": CheckpointConfig(), "evaluation": EvaluationConfig()}
        self.program = replace(self.config, run=RunConfig(seed=config.run.seed), **elsewhere)
        self.functions = self.functions_of.setdefault(self.program, self.functions)

    def fit(self, listeners: Iterable[Listener]) -> Summary:
        """As `Trainer.fit`."""
        return loop.fit(self, listeners)

    @cached_property
    def compiled(self) -> Any:
        if self.program not in self.compiled_of:
            self.compiled_of[self.program] = super().compiled
        return self.compiled_of[self.program]


class SharingTrainer(Trainer):
    """A trainer of a `SharingRun`."""

    _make_run = SharingRun


def make_trainer(config: Config) -> Trainer:
    """A trainer on as many of the virtual devices as its layout takes."""
    return SharingTrainer(config, devices=jax.devices()[: layout_of(config.parallel)])


def make_run(config: Config) -> SharingRun:
    """The run of such a trainer, for tests of its parts."""
    return SharingRun(config, devices=jax.devices()[: layout_of(config.parallel)])


def fit(config: Config, *more: Listener) -> tuple[Summary, Recorder]:
    """Run `config` with `metrics.jsonl` and the given listeners."""
    recorded = Recorder()
    return make_trainer(config).fit([JsonLines(), recorded, *more]), recorded


def folder_of(config: Config) -> Path:
    return Path(config.run.dir) / config.run.name


def losses(config: Config) -> dict[int, float]:
    """Step to loss, as `metrics.jsonl` has them; no step may be there twice."""
    records = read_metrics(folder_of(config) / "metrics.jsonl")
    steps = [record["step"] for record in records]
    assert steps == sorted(set(steps)), f"steps twice or out of order: {steps}"
    return {record["step"]: record["loss"] for record in records}


def saved_state(config: Config, step: int) -> Any:
    """The state that the run's checkpoint of `step` holds, as NumPy."""
    like = make_run(config).saved.abstract
    checkpointer = Checkpointer(folder_of(config) / "checkpoints", keep_last=1, keep_every=None, report=print)
    try:
        return jax.device_get(checkpointer.restore(step, like))
    finally:
        checkpointer.close()


def write_config(config: Config, file: Path) -> Path:
    """`config` as a YAML file for the command line."""
    file.write_text(config_to_yaml(config))
    return file


def start(
    file: Path,
    *overrides: str,
    devices: int = 8,
    program: str = "jaxpar.train",
    environment: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    """`python -m jaxpar.train` (or what stands in for it) in a process of its own, with that many virtual devices."""
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    flags.append(f"--xla_force_host_platform_device_count={devices}")
    settings = [part for override in overrides for part in ("--set", override)]
    return subprocess.Popen(
        [sys.executable, "-m", program, "--config", str(file), *settings],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": " ".join(flags), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
