"""Results of a search, and counts of the work that it did."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.hardware.cluster import Cluster
from jaxpar.layout.memory.estimate import MemoryEstimate
from jaxpar.planner.layout import Layout
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
        """Of a step."""
        return self.time.seconds

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes layouts for a user; how data ranks split into fsdp and replica is a detail."""
        own = self.layout
        return own.pipe, own.data, own.expert, own.context, own.tensor, own.microbatch, own.schedule

    def slower(self, factor: float) -> Candidate:
        """The same layout on a system that takes so many times the predicted seconds."""
        time = self.time
        scaled = {name: factor * seconds for name, seconds in time.breakdown.items()}
        slower = StepTime(factor * time.seconds, scaled, time.tokens_per_s_per_gpu / factor, time.mfu / factor)
        return replace(self, time=slower)


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
