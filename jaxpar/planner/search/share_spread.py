"""How much wider an interval is where one compiled program alone, or those of other GPUs, show what is waited for."""

from __future__ import annotations

from collections import defaultdict
from math import log, sqrt

from jaxpar.planner.layout import Layout
from jaxpar.planner.search.heterogeneous import StepTimer
from jaxpar.planner.step_time.exposed import uncertain_shares
from jaxpar.planner.step_time.interval import ONE_PROGRAM


def share_spread(timer: StepTimer, layout: Layout) -> float:
    """Standard deviation of the logarithm of a step's seconds: half of what the step changes by when the shares of one
    program, or of those of other GPUs, move from `ONE_PROGRAM` less to as much more, together; those of others are
    independent."""
    messages: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for name, programs in uncertain_shares(layout, timer.cluster).items():
        messages[tuple(map(id, programs))].add(name)
    variance = 0.0
    for own in map(frozenset, messages.values()):
        less, more = (timer.changed((own, sign * ONE_PROGRAM)).step(layout).seconds for sign in (-1, 1))
        variance += (log(more / less) / 2) ** 2
    return sqrt(variance)
