"""Jobs that wait for a cluster, and the YAML file that lists them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpar.config import UserError
from jaxpar.config.reading.typed import record_from_plain, shown
from jaxpar.config.reading.yaml_file import read_document
from jaxpar.config.reading.yaml_text import Located
from jaxpar.config.spelling import did_you_mean, named
from jaxpar.planner.jobs.curve import Curve

HOURS = 1e6
"""Largest number of hours that a file may name: 114 years."""


@dataclass(frozen=True)
class WrittenJob:
    """A job of the file."""

    config: str
    """YAML file of the run, relative to the file of jobs."""
    tokens: float
    """To train on."""
    arrives: float = 0.0
    """Hours from now until the job may start."""
    deadline: float | None = None
    """Hours from now until it should have finished."""
    priority: float = 1.0
    """Weight among jobs: an hour of a job of priority 2 counts as two."""
    gpus: int | None = None
    """The number that it asks for, which first-in-first-out gives it; by default the largest number whose GPUs are at
    least four fifths as fast as those of the smallest."""
    set: tuple[str, ...] = ()
    """Overrides of the configuration, `section.key=value`."""


@dataclass(frozen=True)
class Job:
    """A job with its curve of speed against GPUs; times in seconds from now."""

    name: str
    tokens: float
    curve: Curve
    arrives: float = 0.0
    deadline: float | None = None
    priority: float = 1.0
    asks: int | None = None

    @property
    def asked(self) -> int:
        """GPUs that first-in-first-out gives it."""
        return self.curve.efficient if self.asks is None else self.asks


def read_jobs(path: Path) -> dict[str, WrittenJob]:
    """The jobs of a file by name, in its order.

    Raises:
        UserError: the file cannot be read, has no jobs, or a key or value is wrong; the sentence has file and line.
    """
    document = read_document(path)
    for key, located in document.items():
        if key != "jobs":
            raise UserError(f"{named(path)}:{located.line}: {key}: no such key{did_you_mean(key, ['jobs'])}")
    jobs = document["jobs"].value if "jobs" in document else None
    if not isinstance(jobs, dict) or not jobs:
        raise UserError(f"{named(path)}: jobs: expected a mapping from names to jobs, got {shown(jobs)}")
    return {name: _read_job(f"{named(path)}:{job.line}: jobs.{name}", job) for name, job in jobs.items()}


def _read_job(key: str, located: Located) -> WrittenJob:
    job = record_from_plain(WrittenJob, located.value, key)
    _between(f"{key}.tokens", job.tokens, 1, 1e18)
    _between(f"{key}.arrives", job.arrives, 0, HOURS)
    _between(f"{key}.priority", job.priority, 1e-3, 1e3)
    if job.gpus is not None:
        _between(f"{key}.gpus", job.gpus, 1, 2**24)
    if job.deadline is not None:
        _between(f"{key}.deadline", job.deadline, 0, HOURS)
        if job.deadline <= job.arrives:
            raise UserError(f"{key}.deadline: expected hours after arrives ({job.arrives:g}), got {job.deadline:g}")
    return job


def _between(key: str, value: Any, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UserError(f"{key}: expected a number from {least:g} to {most:g}, got {value:g}")
