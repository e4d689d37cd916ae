"""When jobs finish in four of five cases, by the interval of their predicted speeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxpar.planner.jobs.job import Job
from jaxpar.planner.jobs.policies import POLICIES
from jaxpar.planner.jobs.simulation import Outcome, simulate


@dataclass(frozen=True)
class Expected:
    """What a policy gives as predicted, and with all speeds at either end of their intervals."""

    outcome: Outcome
    ends: Sequence[Outcome]
    """Fast and slow; none where speeds have no interval."""

    def interval(self, of: Callable[[Outcome], float]) -> tuple[float, float] | None:
        """The least and greatest of a time; None where speeds have no interval. The predicted one is between them, even
        where a policy finishes a job later because others are faster."""
        times = [of(one) for one in (self.outcome, *self.ends)]
        return (min(times), max(times)) if self.ends else None

    def finished(self, job: str) -> tuple[float, float] | None:
        """Of a job."""
        return self.interval(lambda one: one.finished[job])


def expected(found: Mapping[str, Outcome], gpus: int) -> dict[str, Expected]:
    """Each policy's outcome, and what it would do with jobs that are all faster, or all slower, as far as an interval
    goes. Jobs of a cluster share the larger part of how far they are from predictions."""
    return {
        name: Expected(one, [simulate(jobs, gpus, POLICIES[name]) for jobs in _ends(one.jobs)])
        for name, one in found.items()
    }


def _ends(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs with the greatest and with the least speeds of their intervals."""
    found: list[list[Job]] = [[], []]
    for job in jobs:
        if job.curve.spread is None:
            return []
        for own, seconds in zip(found, job.curve.spread.interval(1.0), strict=True):
            own.append(replace(job, curve=job.curve.faster(1 / seconds)))
    return found
