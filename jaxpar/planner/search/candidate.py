"""Results of a search, and counts of the work that it did."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import Cluster
from jaxpar.layout.memory.estimate import MemoryEstimate
from jaxpar.layout.plan_file import PlanFile
from jaxpar.planner.search.asked import never_measured
from jaxpar.planner.search.space import Group
from jaxpar.planner.search.stage_groups import StagesOfGroup, ranks_of, stages_by_group
from jaxpar.planner.step_time.interval import PUBLISHED, Spread
from jaxpar.planner.step_time.model import StepTime


@dataclass(frozen=True)
class Candidate:
    """A layout, its step and its memory."""

    layout: Layout
    time: StepTime
    memory: MemoryEstimate

    @property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.time.seconds

    @property
    def key(self) -> tuple[object, ...]:
        """The parts that distinguish layouts for a user."""
        return key_of(self.layout, self.layout.schedule)

    def slower(self, factor: float) -> Candidate:
        """The same layout on a system that takes so many times the predicted seconds."""
        return replace(self, time=self.time.times(factor))


def key_of(sizes: Layout | Group, schedule: str) -> tuple[object, ...]:
    """The key of candidates of a schedule; how data ranks split into fsdp and replica is a detail."""
    return sizes.pipe, sizes.data, sizes.expert, sizes.context, sizes.tensor, sizes.microbatch, schedule


@dataclass(frozen=True)
class Planned:
    """A layout that jaxpar can run unchanged."""

    config: Config
    """The configuration with the layout written out."""
    plan: Plan
    cluster: Cluster
    candidate: Candidate
    usable: int
    """Bytes of a device available to the plan."""
    order: tuple[int, ...] | None = None
    """The node in each place, where bandwidths between them were measured."""
    default_seconds: float = 0.0
    """Seconds of a step with nodes in the order of their numbers."""
    spread: Spread | None = PUBLISHED
    """How far measured steps are from predicted ones; None on CPUs, whose numbers are nominal."""

    def on(self, spread: Spread) -> Planned:
        """The same plan on a system of which runs were measured."""
        return replace(self, candidate=self.candidate.slower(spread.factor), spread=spread)

    @property
    def interval(self) -> list[float] | None:
        """The least and the greatest step in four of five cases; None where that is not known."""
        return None if self.spread is None else list(self.spread.interval(self.candidate.seconds))

    @property
    def stages(self) -> list[StagesOfGroup]:
        """The hosts of each stage, where hosts differ; all of an island are alike."""
        if self.candidate.layout.islands > 1:
            return []
        ranks = ranks_of(self.candidate.layout)
        return stages_by_group(self.cluster, self.plan.axes.pipe, ranks, self.plan.stage_layers)

    def file(self, cluster: str) -> PlanFile:
        """The plan as `plan.json` holds it, with what is predicted; `cluster` is where it is for, as the user wrote."""
        time, memory, layout = self.candidate.time, self.candidate.memory, self.candidate.layout
        predicted = {
            "step_time_s": time.seconds,
            "interval_s": self.interval,
            "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu,
            "mfu": time.mfu,
            "peak_bytes": memory.device,
            "host_bytes": memory.host,
            "usable_bytes": self.usable,
            "breakdown": dict(time.breakdown),
            "memory": {name: size for name, size in memory._asdict().items() if name != "host"},
            "never_measured": never_measured(layout),
            "node_order": self.order,
            "hosts": self.cluster.hosts,
            "stages": [
                {"group": one.group.name, "gpu": one.group.gpu.name, "first": one.first, "layers": one.layers}
                for one in self.stages
            ],
        }
        return PlanFile(self.config, self.plan, cluster, predicted)


@dataclass
class Effort:
    """The work that a search did."""

    groups: int = 0
    timed: int = 0
    """Layouts timed in full."""
    bounded: int = 0
    """Nodes for which only a bound was computed."""
    simulated: int = 0
    """Schedules that were simulated."""
    too_large: int = 0
    """Choices and schedules under which nothing fits."""
    declined: list[tuple[Candidate, str]] = field(default_factory=list)
    """Layouts that a run would refuse, and why."""
