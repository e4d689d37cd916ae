"""A published run beside its prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log

from benchmarks.validation.published import Run
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.interval import KNOWN, Spread, residual_spread
from jaxpar.planner.step_time.model import StepTime

UNKNOWN = residual_spread("unknown")
"""The spread of software that is not known: from each generation of software, predicted as the mean of all the
others."""


@dataclass(frozen=True)
class Judged:
    """A published run and what was predicted for it."""

    run: Run
    layout: Layout
    """The layout; where part of it was not published, the variant predicted to be fastest."""
    time: StepTime | None
    """None where only memory was measured."""
    memory_gib: float | None
    """None where it was not measured."""
    each: Mapping[str, float] = field(default_factory=dict)
    """Predicted seconds by what its software may be; of software that is known, as itself alone."""

    @property
    def error(self) -> float | None:
        """Relative error of tokens/s/GPU; above 0 where the run was slower than predicted."""
        measured = self.run.tokens_per_s_per_gpu
        return None if self.time is None or measured is None else self.time.tokens_per_s_per_gpu / measured - 1

    @property
    def errors(self) -> dict[str, float]:
        """Logarithms of measured over predicted seconds, by what its software may be."""
        measured = self.run.seconds
        return {} if measured is None else {name: log(measured / seconds) for name, seconds in self.each.items()}

    @property
    def spread(self) -> Spread:
        """That of its software."""
        return UNKNOWN if self.run.software is None else KNOWN

    @property
    def covered(self) -> bool | None:
        """Whether the measured time is inside the interval."""
        measured = self.run.tokens_per_s_per_gpu
        if self.time is None or measured is None:
            return None
        return self.spread.holds(self.time.tokens_per_s_per_gpu / measured, 1.0)

    @property
    def memory_error(self) -> float | None:
        """Relative error of the peak memory."""
        measured = self.run.peak_gib
        return None if self.memory_gib is None or measured is None else self.memory_gib / measured - 1
