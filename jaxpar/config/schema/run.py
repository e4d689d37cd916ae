"""The sections `run`, `checkpoint`, `watch` and `distributed`: how a run goes, and what happens when it goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from jaxpar.config.bounds import MINUTES, RANKS, SECONDS, SEED, at_least
from jaxpar.config.mappings.limits import LimitsConfig


@dataclass(frozen=True)
class RunConfig:
    """Length, folder and logging of a run."""

    name: str = "run"
    """Name of the run: the folder `<run.dir>/<run.name>` holds everything it writes."""
    dir: str = "runs"
    """Parent folder of the run's own folder."""
    mirror: str | None = None
    """URL of a folder in an object store, such as `s3://bucket/runs`: `<run.mirror>/<run.name>` gets what the run's
    folder has, each checkpoint once it is complete, and a run whose folder is gone continues from there
    (`docs/object-stores.md`)."""
    steps: Annotated[int, at_least(1)] = 1000
    """Optimizer steps to train for."""
    seed: Annotated[int, SEED] = 0
    """Seed of the initial weights, the data order and dropout."""
    init_from: str | None = None
    """Source of a new run's weights, in place of random ones: a folder in Hugging Face's format, of another
    run, of a checkpoint, or one that `python -m jaxpar.convert` wrote. Optimizer, data and step start over, but for
    `init_optimizer`, and the model's weights must have the same shapes. A run that has a checkpoint continues from
    that."""
    init_optimizer: bool = False
    """Take the optimizer state and the step of the run at `init_from` too, and go on after that step with this
    configuration, for another batch size, schedule or mixture. Moments of another optimizer do not fit."""
    log_every: Annotated[int, at_least(1)] = 10
    """Steps between two logged lines."""
    profile: str | None = None
    """Steps to trace with the JAX profiler, as `first:last` (for example `10:15`)."""
    compile_cache: str | None = "~/.cache/jaxpar/xla"
    """Folder of the persistent compilation cache; null turns it off. Other learning rates, schedules,
    decays, limits of the gradient, seeds, numbers of steps and names of a run use the same programs."""
    wandb: str | None = None
    """Project of Weights & Biases to send the run to (the package is the extra `wandb`); null means none."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save and what to keep."""

    every: Annotated[int, at_least(0)] = 0
    """Steps between saves; 0 saves by `every_minutes` alone. The end of a run, SIGTERM and Ctrl-C always save."""
    every_minutes: Annotated[float, at_least(0, MINUTES)] | None = 15.0
    """Minutes after the last save at which another one is due, by the clock of process 0; null or 0 saves by `every`
    alone. The save comes after a step on which all processes agree."""
    keep_last: Annotated[int, at_least(1)] = 2
    """Number of newest checkpoints to keep, and of newest healthy ones: those saved after a step that was applied."""
    keep_every: Annotated[int, at_least(1)] | None = None
    """Never delete a checkpoint whose step is a multiple of this."""


@dataclass(frozen=True)
class WatchConfig:
    """The anomalies that a run watches for, and what it does about a loss spike (`docs/warnings.md`)."""

    on_spike: Literal["report", "rollback"] = "report"
    """`report` reports a spike and continues; `rollback` goes back to the newest checkpoint and skips the batches
    that led to the spike."""
    skip_batches: Annotated[int, at_least(1)] = 2
    """Batches that a rollback skips: that of the spike, and those before it."""
    max_rollbacks: Annotated[int, at_least(1)] = 3
    """The run stops at the spike after this many rollbacks."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    """Limits from which each kind of anomaly is reported."""


@dataclass(frozen=True)
class DistributedConfig:
    """Several processes, one job (`jax.distributed`); what is null comes from Slurm, Open MPI, Kubernetes or
    `launch/local.py`, whichever started the process."""

    coordinator: str | None = None
    """`host:port` of process 0; null asks the launcher, and without one the process is alone."""
    processes: Annotated[int, at_least(1, RANKS)] | None = None
    """Number of processes in the job; null asks the launcher, and 1 is a single process under any launcher."""
    process_id: Annotated[int, at_least(0, RANKS)] | None = None
    """Index of this process; null asks the launcher."""
    devices_per_process: Annotated[int, at_least(1, RANKS)] | None = None
    """Devices that each process must have; null takes the number from the launcher and the layout."""
    secret_file: str | None = None
    """A file with a secret that all processes must know to join; null takes `JAXPAR_SECRET`, and without it there is
    none (`docs/network.md`)."""
    timeout_s: Annotated[int, at_least(1, SECONDS)] = 1800
    """Seconds to wait for the other processes at start-up; missing ones are printed meanwhile."""
    heartbeat_timeout_s: Annotated[int, at_least(2, SECONDS)] = 30
    """A process without a heartbeat for this many seconds ends the job: it was stopped, or its host is down."""
    step_timeout_s: Annotated[int, at_least(1, SECONDS)] | None = None
    """A step that takes more seconds than this ends the job, and the process that the others waited for is named. Null
    follows the pace of the job (`docs/clusters.md`)."""
    pause_timeout_s: Annotated[int, at_least(1, SECONDS)] = 7200
    """The same limit for what is not a step: data, compilation, evaluation, saving, and checking a checkpoint."""
