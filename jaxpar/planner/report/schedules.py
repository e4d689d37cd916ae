"""The pipeline schedules of plans in time, for their drawings."""

from __future__ import annotations

from jaxpar.pipeline.schedules import SCHEDULES, make_schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.simulate import Simulation, simulate
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.heterogeneous import StepTimer

MOST_ACTIONS = 1500
"""Of a drawing; more could not be distinguished."""


def simulated(planned: Planned, timer: StepTimer) -> Simulation | None:
    """The schedule of a plan with the predicted times of its chunks, in seconds; None without a pipeline.

    A pipeline repeats itself every so many microbatches as it has ranks: of long ones the first and the last are drawn.
    """
    plan, layout = planned.plan, planned.candidate.layout
    if layout.pipe == 1:
        return None
    schedule = make_schedule(
        plan.schedule, ranks=layout.pipe, microbatches=drawn_microbatches(planned), virtual_stages=plan.virtual_stages
    )
    chunks, head, transfer = timer.chunk_times(layout)
    forward, backward, weight = zip(*chunks, strict=True)
    durations = Durations(forward, backward, weight, head, transfer, overlap=True)
    return simulate(schedule, durations, mode="branching" if plan.pipe_ticks == "branching" else "lockstep")


def drawn_microbatches(planned: Planned) -> int:
    """As many microbatches as `MOST_ACTIONS` allows, less than there are by a multiple of the ranks."""
    plan, ranks = planned.plan, planned.candidate.layout.pipe
    family = SCHEDULES[plan.schedule]
    each = ranks * plan.virtual_stages * (3 if family.splits_backward else 2)
    least = max(2, family.microbatches_per_rank) * ranks
    most = max(least, MOST_ACTIONS // each)
    surplus = max(0, plan.microbatches - most)
    return plan.microbatches - min(-(-surplus // ranks) * ranks, (plan.microbatches - 1) // ranks * ranks)
