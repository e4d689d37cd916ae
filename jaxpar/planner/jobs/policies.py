"""Who gets how many GPUs: first in first out, equal shares, and by the predicted curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jaxpar.planner.jobs.job import Job
from jaxpar.planner.jobs.simulation import Active, Outcome, Policy, simulate


def first_in_first_out(now: float, active: Sequence[Active], gpus: int) -> Mapping[str, int]:
    """Each job gets what it asked for, in the order of arrival; the first that does not fit holds up all behind it."""
    shares: dict[str, int] = {}
    for one in active:
        share = one.held or one.job.curve.within(min(one.job.asked, gpus))
        if share > gpus - sum(shares.values()):
            break
        shares[one.job.name] = share
    return shares


def equal_shares(now: float, active: Sequence[Active], gpus: int) -> Mapping[str, int]:
    """Each job gets the same number, as far as its curve has it; what is left goes to the first that can use it."""
    shares: dict[str, int] = {}
    for one in active:
        share = one.job.curve.within(gpus // len(active)) or one.job.curve.least
        if share <= gpus - sum(shares.values()):
            shares[one.job.name] = share
    for one in active:
        if one.job.name in shares:
            others = sum(shares.values()) - shares[one.job.name]
            shares[one.job.name] = one.job.curve.within(gpus - others)
    return shares


def by_curves(now: float, active: Sequence[Active], gpus: int) -> Mapping[str, int]:
    """Jobs with a deadline get the fewest GPUs that meet it, the earliest deadline first (the minimum satisfactory
    share of ElasticFlow, ASPLOS 2023, at the present moment instead of over all time slots). The other GPUs go, step by
    step, to the job of which a GPU finishes the largest share of what is left in a second, times its priority."""
    return _shared(now, active, gpus, _minimum_shares(now, active, gpus))


def shortest_first(now: float, active: Sequence[Active], gpus: int) -> Mapping[str, int]:
    """`by_curves` without regard to deadlines."""
    return _shared(now, active, gpus, {})


def _minimum_shares(now: float, active: Sequence[Active], gpus: int) -> dict[str, int]:
    shares: dict[str, int] = {}
    due = [(one.job.deadline, one) for one in active if one.job.deadline is not None]
    for deadline, one in sorted(due, key=lambda pair: (pair[0], -pair[1].job.priority)):
        free = gpus - sum(shares.values())
        enough = [share for share in one.job.curve.points if one.finish(now, share) <= deadline and share <= free]
        if enough:
            shares[one.job.name] = enough[0]
    return shares


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
    "equal shares": equal_shares,
})  # fmt: skip


def outcomes(jobs: Sequence[Job], gpus: int) -> dict[str, Outcome]:
    """The results of each policy, the best first: least priority of late jobs, then least mean time."""
    by_policy = {name: simulate(jobs, gpus, policy) for name, policy in POLICIES.items()}
    return dict(sorted(by_policy.items(), key=lambda item: item[1].score))
