"""`python -m jaxpar.plan cluster`: jobs share a cluster by their predicted speed on each number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from jaxpar.compiler.report.screen import print_lines, screen, table
from jaxpar.config import Config, UserError, load_config
from jaxpar.config.spelling import named
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import Cluster
from jaxpar.pages.units import percent
from jaxpar.planner.failures import HOUR
from jaxpar.planner.jobs.job import Curve, Job, WrittenJob, planned_curve, read_jobs
from jaxpar.planner.jobs.policies import Outcome, outcomes
from jaxpar.planner.machine import is_cpu
from jaxpar.planner.planning import hosts_of_one_kind, planned_config
from jaxpar.planner.report.words import INTERVAL
from jaxpar.planner.step_time.interval import PUBLISHED


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
        by_policy = outcomes(jobs, cluster.devices)
        if self.as_json:
            print(json_text(as_json(by_policy, cluster), indent=2))
        else:
            print_outcomes(by_policy, cluster, screen())

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
                    curve = planned_curve(configs[name], cluster)
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


def as_json(by_policy: Mapping[str, Outcome], cluster: Cluster) -> dict[str, object]:
    """Times in seconds; `plan` is of the first policy."""
    best = next(iter(by_policy.values()))
    return {
        "cluster": cluster.name,
        "policy": next(iter(by_policy)),
        "plan": [
            asdict(span) | {"layout": job.curve.points[span.gpus].layout}
            for job, span in best.by_job()
        ],
        "jobs": {
            job.name: {
                "finished": best.finished[job.name], "deadline": job.deadline, "late": job in best.late,
                "curve": {str(gpus): point.tokens_per_s for gpus, point in job.curve.points.items()},
            }
            for job in best.jobs
        },
        "policies": {
            name: {
                "makespan": one.makespan, "mean_time": one.mean_time, "late": [job.name for job in one.late],
                "gpu_hours": one.gpu_seconds / HOUR,
            }
            for name, one in by_policy.items()
        },
    }  # fmt: skip


def print_outcomes(by_policy: Mapping[str, Outcome], cluster: Cluster, console: Console) -> None:
    """The policies side by side, who has how many GPUs when under the first, and when each job finishes."""
    name, first = next(iter(by_policy.items()))
    heads = "policy", "deadlines met", "mean hours to finish", "all finished after", "GPU-hours", "in use"
    policies = table(heads, ("policy",), "Policies, best first")
    for policy, one in by_policy.items():
        due = sum(job.deadline is not None for job in one.jobs)
        policies.add_row(
            policy, f"{due - len(one.late)} of {due}", f"{one.mean_time / HOUR:,.1f}", f"{one.makespan / HOUR:,.1f} h",
            f"{one.gpu_seconds / HOUR:,.0f}", percent(one.gpu_seconds / one.makespan / cluster.devices),
        )  # fmt: skip
    spans = table(("job", "from hour", "to hour", "GPUs", "tokens/s", "layout"), ("job", "layout"), f"Plan: {name}")
    for job, span in first.by_job():
        spans.add_row(
            job.name, f"{span.start / HOUR:,.1f}", f"{span.end / HOUR:,.1f}", f"{span.gpus:,}",
            f"{job.curve.speed(span.gpus):,.0f}", job.curve.points[span.gpus].layout,
        )  # fmt: skip
    jobs = table(("job", "finishes at hour", "deadline"), ("job",), "Jobs")
    for job in first.jobs:
        due = "-" if job.deadline is None else f"{job.deadline / HOUR:,.1f}"
        jobs.add_row(job.name, f"{first.finished[job.name] / HOUR:,.1f}", due)
    for one in (policies, spans, jobs):
        console.print(one)
    print_lines(console, *(_late(job, by_policy) for job in first.late))
    if not is_cpu(cluster):
        low, high = PUBLISHED.interval(1.0)
        times = f"{low:.2f} to {high:.2f} times as long, of all jobs alike"
        print_lines(console, f"{INTERVAL}: steps of four of five systems take {times}")


def _late(job: Job, by_policy: Mapping[str, Outcome]) -> str:
    """A sentence on a job whose deadline is missed under the first policy."""
    assert job.deadline is not None, "it is late"
    first, *others = by_policy.values()
    more = ", and after it under every policy" if all(job in one.late for one in others) else ""
    return f"{job.name} finishes {(first.finished[job.name] - job.deadline) / HOUR:,.1f} hours after its deadline{more}"
