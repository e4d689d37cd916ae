"""Summary of a schedule: its time in every mode, its memory and its traffic; and a comparison of all schedules."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules import SCHEDULES, make_schedule
from jaxpar.pipeline.table import Schedule
from jaxpar.pipeline.timing.per_chunk import Number
from jaxpar.pipeline.timing.simulate import TIMELINES, Mode, Simulation, simulate
from jaxpar.pipeline.timing.workload import Workload


@dataclass(frozen=True)
class Summary:
    """A schedule with a workload, in every mode."""

    schedule: Schedule
    workload: Workload

    @cached_property
    def modes(self) -> dict[Mode, Simulation]:
        """The simulation in each mode; raises ScheduleError for a workload that does not fit the schedule."""
        durations, sizes = self.workload.durations(self.schedule), self.workload.sizes(self.schedule)
        return {mode: simulate(self.schedule, durations, mode=mode, sizes=sizes) for mode in TIMELINES}

    @property
    def published(self) -> Simulation:
        """Simulation as in papers (`async`)."""
        return self.modes["async"]

    @property
    def lockstep(self) -> Simulation:
        """Simulation of one program for all ranks, which run in lockstep."""
        return self.modes["lockstep"]

    def to_dict(self) -> dict[str, object]:
        """Numbers for JSON. Those without a mode are `async`; in-flight numbers are chunks, lists are by rank."""
        schedule, published = self.schedule, self.published
        return {
            "name": schedule.name,
            "stages": schedule.ranks,
            "microbatches": schedule.microbatches,
            "virtual_stages": schedule.virtual_stages,
            "splits_backward": schedule.splits_backward,
            "unit": self.workload.unit,
            "makespan": plain(published.makespan),
            "ideal": plain(published.ideal),
            "bubble_fraction": float(published.bubble_fraction),
            "lockstep_bubble_fraction": float(self.lockstep.bubble_fraction),
            "peak_in_flight": list(published.peak_in_flight),
            "transfers": published.transfers,
            "transfers_of": list(published.transfers_of),
            "bytes_sent": list(map(plain, published.bytes_sent)),
            "rank_of_chunk": list(schedule.rank_of),
            "lockstep_ticks": len(schedule.ticks),
            "modes": {mode: _mode_summary(simulation) for mode, simulation in self.modes.items()},
        }


@dataclass(frozen=True)
class Refused:
    """A schedule that cannot be made for the requested sizes."""

    name: str
    reason: str

    def to_dict(self) -> dict[str, object]:
        """The refusal, for JSON."""
        return {"name": self.name, "refused": self.reason}


def compare(
    stages: int, microbatches: int, virtual_stages: int | None, workload: Workload
) -> dict[str, Summary | Refused]:
    """Compare all schedules, by name, for the same sizes and work.

    `virtual_stages` is for schedules that leave it open; the others have the number of chunks that they need.
    """
    summaries: dict[str, Summary | Refused] = {}
    for name, family in SCHEDULES.items():
        virtual = virtual_stages if family.virtual_stages[1] is None else None
        try:
            schedule = make_schedule(name, ranks=stages, microbatches=microbatches, virtual_stages=virtual)
            summary = Summary(schedule, workload)
            summary.modes  # noqa: B018 (raises where the workload does not fit)
            summaries[name] = summary
        except ScheduleError as error:
            summaries[name] = Refused(name, str(error))
    return summaries


def plain(number: Number) -> int | float:
    """A fraction as a JSON number."""
    if isinstance(number, Fraction):
        return int(number) if number.denominator == 1 else float(number)
    return number


def _mode_summary(simulation: Simulation) -> dict[str, object]:
    return {
        "makespan": plain(simulation.makespan),
        "bubble": plain(simulation.bubble),
        "bubble_fraction": float(simulation.bubble_fraction),
        "longest_rank": plain(simulation.longest_rank),
        "peak_in_flight": list(simulation.peak_in_flight),
        "peak_bytes": list(map(plain, simulation.peak_bytes)),
    }
