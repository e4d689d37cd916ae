"""Jobs that wait for a cluster, from a YAML file, and the speed of each against its number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from jaxpar.compiler.cluster_parts import part_of
from jaxpar.config import Config, UserError
from jaxpar.config.bounds import at_least
from jaxpar.config.reading.typed import record_from_plain, shown
from jaxpar.config.reading.yaml_file import read_document
from jaxpar.config.spelling import did_you_mean, named
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.sources import chosen
from jaxpar.layers.counting import parameter_count
from jaxpar.planner.failures import reliability, state_per_parameter
from jaxpar.planner.report import words
from jaxpar.planner.search.islands import search_of

HOURS: Annotated[float, chosen("a limit of files")] = 1e6
"""Largest number of hours that a file may name: 114 years."""
EFFICIENT: Annotated[float, chosen("a word of the table of jobs")] = 0.8
"""Share of the best speed of a GPU at which a number of GPUs still counts as efficient."""


@dataclass(frozen=True)
class WrittenJob:
    """A job of the file."""

    config: str
    """YAML file of the run, relative to the file of jobs."""
    tokens: Annotated[float, at_least(1, 1e18)]
    """Tokens to train on."""
    arrives: Annotated[float, at_least(0, HOURS)] = 0.0
    """Hours from now until the job may start."""
    deadline: Annotated[float, at_least(0, HOURS)] | None = None
    """Hours from now until it should have finished."""
    priority: Annotated[float, at_least(1e-3, 1e3)] = 1.0
    """Weight among jobs: an hour of a job of priority 2 counts as two."""
    gpus: Annotated[int, at_least(1, 2**24)] | None = None
    """The number that it asks for, which first-in-first-out gives it; by default the largest number whose GPUs are at
    least four fifths as fast as those of the smallest."""
    set: tuple[str, ...] = ()
    """Overrides of the configuration, `section.key=value`."""


@dataclass(frozen=True)
class Point:
    """One number of GPUs."""

    tokens_per_s: float
    """Training tokens per second, after the cost of failures."""
    pause: float
    """Seconds from the decision to run on this number until the first step: a checkpoint, and a start."""
    layout: str = ""
    """The layout in words."""


@dataclass(frozen=True)
class Curve:
    """Points in ascending order of GPUs and of speed: a number that is no faster than a smaller one is left out."""

    points: Mapping[int, Point]

    @property
    def least(self) -> int:
        """The smallest number of GPUs that runs the job."""
        return next(iter(self.points))

    @property
    def efficient(self) -> int:
        """The largest number whose GPUs have at least `EFFICIENT` of the best speed of a GPU."""
        each = {gpus: point.tokens_per_s / gpus for gpus, point in self.points.items()}
        return max(gpus for gpus, speed in each.items() if speed >= EFFICIENT * max(each.values()))

    def within(self, gpus: int) -> int:
        """The largest number of at most `gpus`; 0 where none is."""
        return max((size for size in self.points if size <= gpus), default=0)

    def speed(self, gpus: int) -> float:
        """Tokens per second; 0 for no GPUs."""
        return self.points[gpus].tokens_per_s if gpus else 0.0


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
    written: dict[str, WrittenJob] = {}
    for name, located in jobs.items():
        key = f"{named(path)}:{located.line}: jobs.{name}"
        written[name] = job = record_from_plain(WrittenJob, located.value, key)
        if job.deadline is not None and job.deadline <= job.arrives:
            raise UserError(f"{key}.deadline: expected hours after arrives ({job.arrives:g}), got {job.deadline:g}")
    return written


def curve_of(points: Mapping[int, Point]) -> Curve:
    """The curve through those points that are faster than all smaller ones."""
    frontier: dict[int, Point] = {}
    for gpus in sorted(points):
        if all(points[gpus].tokens_per_s > point.tokens_per_s for point in frontier.values()):
            frontier[gpus] = points[gpus]
    return Curve(frontier)


def numbers_of(cluster: Cluster) -> list[int]:
    """Numbers of GPUs that a job may have: divisors of a host by powers of two, then whole hosts in steps of a half to
    a third, and all of them. Parts of hosts divide each other, so jobs that fit in number also fit onto hosts."""
    each, hosts = cluster.gpus_per_host, cluster.groups[0].hosts
    parts = [1 << power for power in range(each.bit_length()) if each % (1 << power) == 0 and 1 << power < each]
    several = {scale << power for scale in (1, 3) for power in range(hosts.bit_length()) if scale << power <= hosts}
    return [*parts, *(each * size for size in sorted(several | {hosts}))]


def planned_curve(config: Config, cluster: Cluster) -> Curve:
    """The best layout at each number of GPUs that has one.

    Args:
        config: of a run, as `planned_config` returns it.
        cluster: hosts of one kind; a job has some of them.

    Raises:
        UserError: no number of GPUs has a layout.
    """
    points: dict[int, Point] = {}
    parameters, last = parameter_count(config.model, padded=False), ""
    for gpus in numbers_of(cluster):
        try:
            best = search_of(config, part_of(cluster, gpus)).best(1)[0].candidate
        except UserError as error:
            last = f"on {gpus}: {error}"
            continue
        lost = reliability(gpus, parameters, per_parameter=state_per_parameter(config))
        rate = best.time.tokens_per_s_per_gpu * gpus * lost.share
        points[gpus] = Point(rate, lost.save + lost.start, words.in_one_line(best.layout))
    if not points:
        raise UserError(f"no number of GPUs has a layout; {last}")
    return curve_of(points)
