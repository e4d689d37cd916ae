"""What a search finds, and what it did for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.hardware.cluster import Cluster
from jaxpar.planner.layout import Layout
from jaxpar.planner.time_model import StepTime
from jaxpar.training.memory_estimate import MemoryEstimate


@dataclass(frozen=True)
class Found:
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
        """What makes it another layout to a user; whether data ranks are fsdp or replica, and how much, is a detail."""
        own = self.layout
        return own.pipe, own.data, own.context, own.tensor, own.microbatch, own.schedule


@dataclass(frozen=True)
class Planned:
    """A layout that jaxpar runs as it stands."""

    config: Config
    """With the layout written out."""
    plan: Plan
    cluster: Cluster
    found: Found
    usable: int
    """Bytes of a device that could be planned for."""
    order: tuple[int, ...] | None = None
    """The node in each place, where bandwidths between them were measured."""
    default_seconds: float = 0.0
    """Of a step with nodes in the order of their numbers."""


@dataclass
class Effort:
    """What a search did."""

    groups: int = 0
    timed: int = 0
    """Layouts timed in full."""
    bounded: int = 0
    """Nodes that only a bound was taken of."""
    simulated: int = 0
    """Schedules that were simulated."""
    too_large: int = 0
    """Choices and schedules under which nothing fits."""
    declined: list[tuple[Found, str]] = field(default_factory=list)
    """Layouts that a run would refuse, and why."""
    refused: Counter[str] = field(default_factory=Counter)
    """Groups that a rule of the configuration excludes, by rule."""
