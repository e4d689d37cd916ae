"""`python -m jaxpar.plan cluster`: jobs share a cluster by their predicted speed on each number of GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from jaxpar.config import Config, UserError, load_config
from jaxpar.config.spelling import named
from jaxpar.hardware.cluster import Cluster
from jaxpar.planner.failures import HOUR
from jaxpar.planner.jobs.curve import Curve, planned_curve
from jaxpar.planner.jobs.job import Job, WrittenJob, read_jobs
from jaxpar.planner.jobs.policies import outcomes
from jaxpar.planner.jobs.simulation import Outcome
from jaxpar.planner.planning import hosts_of_one_kind, planned_config, screen
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
        jobs = self._jobs(written, configs, cluster, Console(quiet=True) if self.as_json else console)
        found = outcomes(jobs, cluster.devices)
        if self.as_json:
            print(json.dumps(as_json(found, cluster), indent=2))
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


def as_json(found: Mapping[str, Outcome], cluster: Cluster) -> dict[str, object]:
    """Times in seconds; `plan` is of the first policy."""
    best = next(iter(found.values()))
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
            for name, one in found.items()
        },
    }  # fmt: skip


def print_outcomes(found: Mapping[str, Outcome], cluster: Cluster, console: Console) -> None:
    """The policies side by side, and who has how many GPUs when under the first."""
    name, best = next(iter(found.items()))
    table = Table(title="Policies, best first", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("policy", "deadlines met", "mean hours to finish", "all finished after", "GPU-hours", "in use"):
        table.add_column(head, justify="left" if head == "policy" else "right")
    for policy, one in found.items():
        due = sum(job.deadline is not None for job in one.jobs)
        table.add_row(
            policy, f"{due - len(one.late)} of {due}", f"{one.mean_time / HOUR:,.1f}", f"{one.makespan / HOUR:,.1f} h",
            f"{one.gpu_seconds / HOUR:,.0f}", percent(one.gpu_seconds / one.makespan / cluster.devices),
        )  # fmt: skip
    console.print(table)
    console.print(_spans(name, best))
    console.print(_picture(best, cluster.devices), highlight=False, markup=False)
    for job in best.late:
        assert job.deadline is not None
        always = all(job in one.late for one in found.values())
        console.print(
            f"{job.name} finishes {(best.finished[job.name] - job.deadline) / HOUR:,.1f} hours after its deadline"
            + (", and after it under every policy" if always else ""),
            highlight=False, soft_wrap=True,
        )  # fmt: skip


def _spans(policy: str, outcome: Outcome) -> Table:
    table = Table(title=f"Plan: {policy}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("job", "from hour", "to hour", "GPUs", "layout"):
        table.add_column(head, justify="left" if head in ("job", "layout") else "right")
    for job in outcome.jobs:
        for span in outcome.spans:
            if span.job == job.name:
                layout = job.curve.points[span.gpus].layout
                table.add_row(
                    job.name, f"{span.start / HOUR:,.1f}", f"{span.end / HOUR:,.1f}", f"{span.gpus:,}", layout
                )
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
