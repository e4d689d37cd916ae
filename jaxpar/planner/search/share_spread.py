"""How much wider an interval is where one compiled program alone shows what is waited for."""

from __future__ import annotations

from collections import defaultdict
from math import log, sqrt

from jaxpar.planner.layout import Layout
from jaxpar.planner.search.heterogeneous import StepTimer
from jaxpar.planner.step_time.exposed import shares_of_one_program
from jaxpar.planner.step_time.interval import ONE_PROGRAM


def share_spread(timer: StepTimer, layout: Layout) -> float:
    """Standard deviation of the logarithm of a step's seconds: half of what the step changes by when the shares of one
    program move from `ONE_PROGRAM` less to as much more, together; those of several programs are independent."""
    messages: dict[int, set[str]] = defaultdict(set)
    for name, program in shares_of_one_program(layout, timer.cluster).items():
        messages[id(program)].add(name)
    variance = 0.0
    for own in map(frozenset, messages.values()):
        less, more = (timer.changed((own, sign * ONE_PROGRAM)).step(layout).seconds for sign in (-1, 1))
        variance += (log(more / less) / 2) ** 2
    return sqrt(variance)
