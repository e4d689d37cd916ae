"""`python -m jaxpar.plan cluster`: jobs share a cluster by their predicted speed on each number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from jaxpar.config import Config, UserError, load_config
from jaxpar.config.spelling import named
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import Cluster
from jaxpar.planner.failures import HOUR
from jaxpar.planner.jobs.curve import Curve, planned_curve
from jaxpar.planner.jobs.intervals import Expected, expected
from jaxpar.planner.jobs.job import Job, WrittenJob, read_jobs
from jaxpar.planner.jobs.policies import outcomes
from jaxpar.planner.jobs.simulation import Outcome
from jaxpar.planner.planning import hosts_of_one_kind, planned_config, screen
from jaxpar.planner.report.columns import INTERVAL
from jaxpar.units import percent

COLUMNS = 60
"""Letters of the picture of a job's time."""


@dataclass(frozen=True)
class ClusterJobs:
    """What the user asked for."""

    cluster: str
    jobs: Path
    as_json: bool = False

    def run(self) -> None:
        """Plan each job at each number of GPUs, share the cluster, and print. Raises `UserError`."""
        cluster = hosts_of_one_kind(self.cluster)
        written = read_jobs(self.jobs)
        configs = {name: self._config(name, job, cluster) for name, job in written.items()}
        console = screen()
        jobs = self._jobs(written, configs, cluster, Console(quiet=True, markup=False) if self.as_json else console)
        found = expected(outcomes(jobs, cluster.devices), cluster.devices)
        if self.as_json:
            print(json_text(as_json(found, cluster), indent=2))
            return
        print_outcomes(found, cluster, console)

    def _config(self, name: str, job: WrittenJob, cluster: Cluster) -> Config:
        """What the job trains. Raises `UserError` that names the job."""
        if job.gpus is not None and job.gpus > cluster.devices:
            what = f"expected at most the cluster's {cluster.devices}, got {job.gpus}"
            raise UserError(f"{named(self.jobs)}: jobs.{name}.gpus: {what}")
        try:
            return planned_config(load_config(self.jobs.parent / job.config, job.set))
        except UserError as error:
            raise UserError(f"{named(self.jobs)}: jobs.{name}: {error}") from None

    def _jobs(
        self, written: Mapping[str, WrittenJob], configs: Mapping[str, Config], cluster: Cluster, console: Console
    ) -> list[Job]:
        """The jobs with their curves; jobs of one configuration share one search."""
        curves: list[tuple[Config, Curve]] = []
        jobs = []
        for name, job in written.items():
            curve = next((curve for config, curve in curves if config == configs[name]), None)
            if curve is None:
                console.print(f"{name}: planning on up to {cluster.devices:,} GPUs", highlight=False, style="dim")
                try:
                    curve, _ = planned_curve(configs[name], cluster)
                except UserError as error:
                    raise UserError(f"{named(self.jobs)}: jobs.{name}: {error}") from None
                curves.append((configs[name], curve))
            if job.gpus is not None and job.gpus < curve.least:
                raise UserError(
                    f"{named(self.jobs)}: jobs.{name}.gpus: expected at least {curve.least}, the fewest with a layout, "
                    f"got {job.gpus}"
                )
            deadline = None if job.deadline is None else HOUR * job.deadline
            jobs.append(Job(name, job.tokens, curve, HOUR * job.arrives, deadline, job.priority, job.gpus))
        return jobs


def as_json(found: Mapping[str, Expected], cluster: Cluster) -> dict[str, object]:
    """Times in seconds; `plan` is of the first policy. Intervals hold four of five cases; null on CPUs."""
    first = next(iter(found.values()))
    best = first.outcome
    return {
        "cluster": cluster.name,
        "policy": next(iter(found)),
        "plan": [
            asdict(span) | {"layout": job.curve.points[span.gpus].layout}
            for job in best.jobs
            for span in best.spans
            if span.job == job.name
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
    """The policies side by side, and who has how many GPUs when under the first."""
    name, first = next(iter(found.items()))
    best = first.outcome
    table = Table(title="Policies, best first", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in (
        "policy", "deadlines met", "mean hours to finish", INTERVAL, "all finished after", INTERVAL, "GPU-hours",
        "in use",
    ):  # fmt: skip
        table.add_column(head, justify="left" if head == "policy" else "right")
    for policy, own in found.items():
        one = own.outcome
        due = sum(job.deadline is not None for job in one.jobs)
        table.add_row(
            policy, f"{due - len(one.late)} of {due}",
            f"{one.mean_time / HOUR:,.1f}", _between(own.interval(lambda end: end.mean_time), HOUR),
            f"{one.makespan / HOUR:,.1f} h", _between(own.interval(lambda end: end.makespan), HOUR),
            f"{one.gpu_seconds / HOUR:,.0f}", percent(one.gpu_seconds / one.makespan / cluster.devices),
        )  # fmt: skip
    console.print(table)
    console.print(_spans(name, best))
    console.print(_picture(best, cluster.devices), highlight=False, markup=False)
    console.print(_jobs(first))
    for job in best.jobs:
        if sentence := _deadline(job, first, found):
            console.print(sentence, highlight=False, soft_wrap=True)


def _deadline(job: Job, first: Expected, found: Mapping[str, Expected]) -> str | None:
    """What is to be said of a job whose deadline is missed, or may be."""
    if job.deadline is None:
        return None
    if job in first.outcome.late:
        always = all(job in one.outcome.late for one in found.values())
        later = (first.outcome.finished[job.name] - job.deadline) / HOUR
        return f"{job.name} finishes {later:,.1f} hours after its deadline" + (
            ", and after it under every policy" if always else ""
        )
    between = first.finished(job.name)
    if between is None or between[1] <= job.deadline:
        return None
    later = (between[1] - job.deadline) / HOUR
    return f"{job.name} meets its deadline as predicted, and misses it by {later:,.1f} hours at the end of its interval"


def _between(interval: tuple[float, float] | None, unit: float) -> str:
    return "-" if interval is None else f"{interval[0] / unit:,.1f} to {interval[1] / unit:,.1f}"


def _jobs(first: Expected) -> Table:
    """When each job finishes."""
    table = Table(title="Jobs", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("job", "finishes at hour", INTERVAL, "deadline"):
        table.add_column(head, justify="left" if head == "job" else "right")
    for job in first.outcome.jobs:
        table.add_row(
            job.name, f"{first.outcome.finished[job.name] / HOUR:,.1f}", _between(first.finished(job.name), HOUR),
            "-" if job.deadline is None else f"{job.deadline / HOUR:,.1f}",
        )  # fmt: skip
    return table


def _spans(policy: str, outcome: Outcome) -> Table:
    table = Table(title=f"Plan: {policy}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("job", "from hour", "to hour", "GPUs", "tokens/s", INTERVAL, "layout"):
        table.add_column(head, justify="left" if head in ("job", "layout") else "right")
    for job in outcome.jobs:
        for span in outcome.spans:
            if span.job == job.name:
                between = job.curve.interval(span.gpus)
                table.add_row(
                    job.name, f"{span.start / HOUR:,.1f}", f"{span.end / HOUR:,.1f}", f"{span.gpus:,}",
                    f"{job.curve.speed(span.gpus):,.0f}",
                    "-" if between is None else "{:,.0f} to {:,.0f}".format(*between),
                    job.curve.points[span.gpus].layout,
                )  # fmt: skip
    return table


def _picture(outcome: Outcome, gpus: int) -> str:
    """A line for each job over time: the eighths of the cluster that it has, `.` while it waits."""
    width = max(len(job.name) for job in outcome.jobs)
    lines = []
    for job in outcome.jobs:
        letters = (_letter(outcome, job, gpus, column) for column in range(COLUMNS))
        lines.append(f"{job.name:<{width}} |{''.join(letters)}|")
    end = f"{outcome.makespan / HOUR:,.1f} h"
    lines.append(f"{'':<{width}}  0{end:>{COLUMNS}}   (eighths of the cluster; + less than one, . waiting)")
    return "\n".join(lines)


def _letter(outcome: Outcome, job: Job, gpus: int, column: int) -> str:
    time = (column + 0.5) * outcome.makespan / COLUMNS
    held = sum(span.gpus for span in outcome.spans if span.job == job.name and span.start <= time < span.end)
    if held:
        return str(8 * held // gpus) if 8 * held >= gpus else "+"
    return "." if job.arrives <= time < outcome.finished[job.name] else " "
