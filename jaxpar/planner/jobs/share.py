"""`python -m jaxpar.plan cluster`: jobs share a cluster by their predicted speed on each number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from jaxpar.config import Config, UserError, load_config
from jaxpar.config.spelling import named
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import Cluster
from jaxpar.planner.failures import HOUR
from jaxpar.planner.jobs.curve import Curve, planned_curve
from jaxpar.planner.jobs.job import Job, WrittenJob, read_jobs
from jaxpar.planner.jobs.policies import Expected, expected, outcomes
from jaxpar.planner.planning import hosts_of_one_kind, planned_config
from jaxpar.planner.report.screen import print_lines, screen, table
from jaxpar.planner.report.words import INTERVAL
from jaxpar.units import percent


@dataclass(frozen=True)
class ClusterJobs:
    """The user's options."""

    cluster: str
    jobs: Path
    as_json: bool = False

    def run(self) -> None:
        """Plan each job at each number of GPUs, share the cluster, and print. Raises `UserError`."""
        cluster = hosts_of_one_kind(self.cluster)
        written = read_jobs(self.jobs)
        configs = {name: self._config(name, job, cluster) for name, job in written.items()}
        jobs = self._jobs(written, configs, cluster)
        found = expected(outcomes(jobs, cluster.devices), cluster.devices)
        if self.as_json:
            print(json_text(as_json(found, cluster), indent=2))
        else:
            print_outcomes(found, cluster, screen())

    def _config(self, name: str, job: WrittenJob, cluster: Cluster) -> Config:
        """The configuration that the job trains. Raises `UserError` that names the job."""
        if job.gpus is not None and job.gpus > cluster.devices:
            raise self._error(f"{name}.gpus", f"expected at most the cluster's {cluster.devices}, got {job.gpus}")
        try:
            return planned_config(load_config(self.jobs.parent / job.config, job.set))
        except UserError as error:
            raise self._error(name, error) from None

    def _jobs(self, written: Mapping[str, WrittenJob], configs: Mapping[str, Config], cluster: Cluster) -> list[Job]:
        """The jobs with their curves; jobs of one configuration share one search."""
        curves: list[tuple[Config, Curve]] = []
        jobs = []
        for name, job in written.items():
            curve = next((curve for config, curve in curves if config == configs[name]), None)
            if curve is None:
                if not self.as_json:
                    print_lines(screen(), f"{name}: planning on up to {cluster.devices:,} GPUs", style="dim")
                try:
                    curve, _ = planned_curve(configs[name], cluster)
                except UserError as error:
                    raise self._error(name, error) from None
                curves.append((configs[name], curve))
            if job.gpus is not None and job.gpus < curve.least:
                what = f"expected at least {curve.least}, the fewest with a layout, got {job.gpus}"
                raise self._error(f"{name}.gpus", what)
            deadline = None if job.deadline is None else HOUR * job.deadline
            jobs.append(Job(name, job.tokens, curve, HOUR * job.arrives, deadline, job.priority, job.gpus))
        return jobs

    def _error(self, key: str, what: object) -> UserError:
        return UserError(f"{named(self.jobs)}: jobs.{key}: {what}")


def as_json(found: Mapping[str, Expected], cluster: Cluster) -> dict[str, object]:
    """Times in seconds; `plan` is of the first policy. Intervals hold four of five cases; null on CPUs."""
    first = next(iter(found.values()))
    best = first.outcome
    return {
        "cluster": cluster.name,
        "policy": next(iter(found)),
        "plan": [
            asdict(span) | {"layout": job.curve.points[span.gpus].layout}
            for job, span in best.by_job()
        ],
        "jobs": {
            job.name: {
                "finished": best.finished[job.name], "finished_interval": first.finished(job.name),
                "deadline": job.deadline, "late": job in best.late,
                "curve": {str(gpus): point.tokens_per_s for gpus, point in job.curve.points.items()},
                "curve_interval": {str(gpus): job.curve.interval(gpus) for gpus in job.curve.points},
            }
            for job in best.jobs
        },
        "policies": {
            name: {
                "makespan": one.outcome.makespan, "makespan_interval": one.interval(lambda own: own.makespan),
                "mean_time": one.outcome.mean_time, "mean_time_interval": one.interval(lambda own: own.mean_time),
                "late": [job.name for job in one.outcome.late], "gpu_hours": one.outcome.gpu_seconds / HOUR,
            }
            for name, one in found.items()
        },
    }  # fmt: skip


def print_outcomes(found: Mapping[str, Expected], cluster: Cluster, console: Console) -> None:
    """The policies side by side, who has how many GPUs when under the first, and when each job finishes."""
    name, first = next(iter(found.items()))
    heads = "policy", "deadlines met", "mean hours to finish", INTERVAL, "all finished after", INTERVAL
    policies = table((*heads, "GPU-hours", "in use"), ("policy",), "Policies, best first")
    for policy, own in found.items():
        one = own.outcome
        due = sum(job.deadline is not None for job in one.jobs)
        policies.add_row(
            policy, f"{due - len(one.late)} of {due}",
            f"{one.mean_time / HOUR:,.1f}", _between(own.interval(lambda end: end.mean_time), HOUR),
            f"{one.makespan / HOUR:,.1f} h", _between(own.interval(lambda end: end.makespan), HOUR),
            f"{one.gpu_seconds / HOUR:,.0f}", percent(one.gpu_seconds / one.makespan / cluster.devices),
        )  # fmt: skip
    spans = table(
        ("job", "from hour", "to hour", "GPUs", "tokens/s", INTERVAL, "layout"), ("job", "layout"), f"Plan: {name}"
    )
    for job, span in first.outcome.by_job():
        spans.add_row(
            job.name, f"{span.start / HOUR:,.1f}", f"{span.end / HOUR:,.1f}", f"{span.gpus:,}",
            f"{job.curve.speed(span.gpus):,.0f}", _between(job.curve.interval(span.gpus), 1, 0),
            job.curve.points[span.gpus].layout,
        )  # fmt: skip
    jobs = table(("job", "finishes at hour", INTERVAL, "deadline"), ("job",), "Jobs")
    for job in first.outcome.jobs:
        jobs.add_row(
            job.name, f"{first.outcome.finished[job.name] / HOUR:,.1f}", _between(first.finished(job.name), HOUR),
            "-" if job.deadline is None else f"{job.deadline / HOUR:,.1f}",
        )  # fmt: skip
    for one in (policies, spans, jobs):
        console.print(one)
    print_lines(console, *filter(None, (_deadline(job, first, found) for job in first.outcome.jobs)))


def _deadline(job: Job, first: Expected, found: Mapping[str, Expected]) -> str | None:
    """A sentence on a job whose deadline is missed, or may be."""
    if job.deadline is None:
        return None
    hours = lambda finished: f"{(finished - job.deadline) / HOUR:,.1f} hours"
    if job in first.outcome.late:
        always = all(job in one.outcome.late for one in found.values())
        more = ", and after it under every policy" if always else ""
        return f"{job.name} finishes {hours(first.outcome.finished[job.name])} after its deadline{more}"
    interval = first.finished(job.name)
    if interval is None or interval[1] <= job.deadline:
        return None
    late = hours(interval[1])
    return f"{job.name} meets its deadline as predicted, and misses it by {late} at the end of its interval"


def _between(interval: tuple[float, float] | None, unit: float, digits: int = 1) -> str:
    return "-" if interval is None else " to ".join(f"{end / unit:,.{digits}f}" for end in interval)
