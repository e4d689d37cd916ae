"""Jobs on a cluster over time, under a policy: events are arrivals and completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxpar.planner.jobs.job import Job


@dataclass(frozen=True)
class Active:
    """A job that has arrived and not finished."""

    job: Job
    left: float
    """Tokens to train on."""
    held: int
    """GPUs that it has; 0 while it waits."""
    ready: float
    """Time from which it trains on them."""

    def finish(self, now: float, gpus: int) -> float:
        """When it would finish on so many GPUs from now on; a change costs the pause of the new number."""
        if not gpus:
            return float("inf")
        starts = max(now, self.ready) if gpus == self.held else now + self.job.curve.points[gpus].pause
        return starts + self.left / self.job.curve.speed(gpus)


type Policy = Callable[[float, Sequence[Active], int], Mapping[str, int]]
"""(seconds from now on, jobs in order of arrival, GPUs of the cluster) -> GPUs of each job; those left out wait."""


@dataclass(frozen=True)
class Span:
    """A time in which a job keeps its GPUs; seconds."""

    job: str
    gpus: int
    start: float
    end: float


@dataclass(frozen=True)
class Outcome:
    """Who had how many GPUs when."""

    jobs: Sequence[Job]
    spans: Sequence[Span]
    finished: Mapping[str, float] = field(default_factory=dict)
    """Seconds from now, by job."""

    def by_job(self) -> list[tuple[Job, Span]]:
        """The spans of each job."""
        return [(job, span) for job in self.jobs for span in self.spans if span.job == job.name]

    @property
    def makespan(self) -> float:
        """Seconds until the last job has finished."""
        return max(self.finished.values())

    @property
    def mean_time(self) -> float:
        """Seconds from arrival to completion, averaged by priority."""
        total = sum(job.priority * (self.finished[job.name] - job.arrives) for job in self.jobs)
        return total / sum(job.priority for job in self.jobs)

    @property
    def late(self) -> list[Job]:
        """Jobs that miss their deadline."""
        return [job for job in self.jobs if job.deadline is not None and self.finished[job.name] > job.deadline]

    @property
    def gpu_seconds(self) -> float:
        """GPUs times seconds that jobs had them."""
        return sum(span.gpus * (span.end - span.start) for span in self.spans)

    @property
    def score(self) -> tuple[float, float]:
        """Less is better: priorities of late jobs, then the mean time."""
        return sum(job.priority for job in self.late), self.mean_time


def simulate(jobs: Sequence[Job], gpus: int, policy: Policy) -> Outcome:
    """Run jobs to their end; the policy decides anew at each arrival and completion.

    A job that gets another number of GPUs stops, writes a checkpoint and starts again (`Point.pause`); one that keeps
    its number is not disturbed. Parts of hosts are taken to be packed, so a move within the cluster costs nothing.

    Args:
        jobs: with names that differ; each has a point of at most `gpus` GPUs.
        gpus: of the cluster.
    """
    waiting = sorted(jobs, key=lambda job: job.arrives)
    active: list[Active] = []
    started: dict[str, float] = {}
    spans: list[Span] = []
    finished: dict[str, float] = {}
    now = 0.0
    while waiting or active:
        if not active:
            now = max(now, waiting[0].arrives)
        while waiting and waiting[0].arrives <= now:
            job = waiting.pop(0)
            active.append(Active(job, job.tokens, 0, now))
        shares = policy(now, active, gpus)
        assert sum(shares.values()) <= gpus and (any(shares.values()) or waiting), "a policy must let some job run"
        for place, one in enumerate(active):
            number = shares.get(one.job.name, 0)
            if number == one.held:
                continue
            if one.held:
                spans.append(Span(one.job.name, one.held, started[one.job.name], now))
            ready = now + one.job.curve.points[number].pause if number else now
            active[place] = Active(one.job, one.left, number, ready)
            started[one.job.name] = now
        ends = {one.job.name: one.finish(now, one.held) for one in active if one.held}
        then = min([*ends.values(), *(job.arrives for job in waiting[:1])])
        left = []
        for one in active:
            if ends.get(one.job.name) == then:
                finished[one.job.name] = then
                spans.append(Span(one.job.name, one.held, started[one.job.name], then))
                continue
            trained = one.job.curve.speed(one.held) * max(0.0, then - max(now, one.ready))
            left.append(Active(one.job, one.left - trained, one.held, one.ready))
        active, now = left, then
    return Outcome(tuple(jobs), tuple(spans), finished)
