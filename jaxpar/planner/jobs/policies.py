"""Who gets how many GPUs over time: jobs on a cluster under a policy, whose events are arrivals and completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from jaxpar.planner.jobs.job import Job


@dataclass(frozen=True)
class Span:
    """A time in which a job keeps its GPUs; seconds."""

    job: str
    gpus: int
    start: float
    end: float


@dataclass(frozen=True)
class Active:
    """A job that has arrived and not finished."""

    job: Job
    left: float
    """Tokens to train on."""
    held: int
    """GPUs that it has; 0 while it waits."""
    since: float
    """Time from which it has so many."""
    ready: float
    """Time from which it trains on them."""

    def finish(self, now: float, gpus: int) -> float:
        """When it would finish on so many GPUs from now on; a change costs the pause of the new number."""
        if not gpus:
            return float("inf")
        starts = max(now, self.ready) if gpus == self.held else now + self.job.curve.points[gpus].pause
        return starts + self.left / self.job.curve.speed(gpus)

    def until(self, now: float) -> list[Span]:
        """The span in which it had its GPUs, if it has any."""
        return [Span(self.job.name, self.held, self.since, now)] if self.held else []


type Policy = Callable[[float, Sequence[Active], int], Mapping[str, int]]
"""(seconds from now on, jobs in order of arrival, GPUs of the cluster) -> GPUs of each job; those left out wait."""


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
        policy: who gets how many.
    """
    waiting = sorted(jobs, key=lambda job: job.arrives)
    active: list[Active] = []
    spans: list[Span] = []
    finished: dict[str, float] = {}
    now = 0.0
    while waiting or active:
        if not active:
            now = max(now, waiting[0].arrives)
        while waiting and waiting[0].arrives <= now:
            job = waiting.pop(0)
            active.append(Active(job, job.tokens, 0, now, now))
        shares = policy(now, active, gpus)
        assert sum(shares.values()) <= gpus and (any(shares.values()) or waiting), "a policy must let some job run"
        for index, one in enumerate(active):
            if (share := shares.get(one.job.name, 0)) != one.held:
                spans += one.until(now)
                pause = one.job.curve.points[share].pause if share else 0.0
                active[index] = replace(one, held=share, since=now, ready=now + pause)
        ends = {one.job.name: one.finish(now, one.held) for one in active if one.held}
        then = min([*ends.values(), *(job.arrives for job in waiting[:1])])
        for one in (one for one in active if ends.get(one.job.name) == then):
            finished[one.job.name] = then
            spans += one.until(then)
        trained = lambda one, now=now, then=then: one.job.curve.speed(one.held) * max(0.0, then - max(now, one.ready))
        active = [replace(one, left=one.left - trained(one)) for one in active if one.job.name not in finished]
        now = then
    return Outcome(tuple(jobs), tuple(spans), finished)


def first_in_first_out(now: float, active: Sequence[Active], gpus: int) -> Mapping[str, int]:
    """Each job gets what it asked for, in the order of arrival; the first that does not fit holds up all behind it."""
    shares: dict[str, int] = {}
    for one in active:
        share = one.held or one.job.curve.within(min(one.job.asked, gpus))
        if share > gpus - sum(shares.values()):
            break
        shares[one.job.name] = share
    return shares


def by_curves(now: float, active: Sequence[Active], gpus: int) -> Mapping[str, int]:
    """Jobs with a deadline get the fewest GPUs that meet it, the earliest deadline first (the minimum satisfactory
    share of ElasticFlow, ASPLOS 2023, at the present moment instead of over all time slots). The other GPUs go, step by
    step, to the job of which a GPU finishes the largest share of what is left in a second, times its priority."""
    shares: dict[str, int] = {}
    due = [(one.job.deadline, one) for one in active if one.job.deadline is not None]
    for deadline, one in sorted(due, key=lambda pair: (pair[0], -pair[1].job.priority)):
        free = gpus - sum(shares.values())
        enough = [share for share in one.job.curve.points if one.finish(now, share) <= deadline and share <= free]
        if enough:
            shares[one.job.name] = enough[0]
    return _shared(now, active, gpus, shares)


def shortest_first(now: float, active: Sequence[Active], gpus: int) -> Mapping[str, int]:
    """`by_curves` without regard to deadlines."""
    return _shared(now, active, gpus, {})


def _shared(now: float, active: Sequence[Active], gpus: int, shares: dict[str, int]) -> Mapping[str, int]:
    """`shares`, and the GPUs that they leave to the jobs that gain most; jobs are not restarted for nothing."""
    while True:
        free = gpus - sum(shares.values())
        steps = [
            (_gain(one, shares.get(one.job.name, 0), share), one.job.name, share)
            for one in active
            for share in one.job.curve.points
            if 0 < share - shares.get(one.job.name, 0) <= free
        ]
        if not steps:
            break
        _, name, share = max(steps, key=lambda step: step[0])
        shares[name] = share
    for one in active:  # a change that does not pay for its pause
        share, name = shares.get(one.job.name, 0), one.job.name
        fits = one.held and sum(shares.values()) - share + one.held <= gpus
        if share != one.held and fits and one.finish(now, one.held) <= one.finish(now, share):
            shares[name] = one.held
    return shares


def _gain(one: Active, old: int, new: int) -> float:
    """Share of the work that is left which a GPU more does in a second, times the priority."""
    curve = one.job.curve
    return one.job.priority * (curve.speed(new) - curve.speed(old)) / one.left / (new - old)


POLICIES: Mapping[str, Policy] = MappingProxyType({
    "by curves": by_curves, "shortest first": shortest_first, "first in, first out": first_in_first_out,
})  # fmt: skip


def outcomes(jobs: Sequence[Job], gpus: int) -> dict[str, Outcome]:
    """The results of each policy, the best first: least priority of late jobs, then least mean time."""
    by_policy = {name: simulate(jobs, gpus, policy) for name, policy in POLICIES.items()}
    return dict(sorted(by_policy.items(), key=lambda item: item[1].score))
