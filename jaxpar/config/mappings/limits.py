"""The mapping `watch.limits`: from where each kind of anomaly is reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import ABOVE_ONE, POSITIVE, SHARE, at_least


@dataclass(frozen=True)
class LimitsConfig:
    """Limits from which an anomaly is reported, by its kind, or ends the run. Null, where it is allowed, reports none
    of that kind."""

    spike: Annotated[float, POSITIVE] | None = 8.0
    """A loss this many robust standard deviations above the median of the last ones is a spike."""
    spike_window: Annotated[int, at_least(10, 2**20)] = 100
    """Number of past losses that a new one is compared with."""
    skipped_steps: Annotated[int, at_least(1)] = 10
    """The run stops with a diagnosis after this many consecutive steps with a non-finite loss or gradient."""
    slow_step: Annotated[float, ABOVE_ONE] | None = 3.0
    """A step is reported if it takes this many times the median and at least a second longer."""
    slow_pace: Annotated[float, ABOVE_ONE] | None = 1.5
    """Twenty consecutive steps are reported if their median is this many times the best there was."""
    data_wait: Annotated[float, SHARE] | None = 0.1
    """Waiting for data is reported from this share of the time on."""
    straggler: Annotated[float, SHARE] | None = 0.1
    """A process is reported when all others wait for it for this share of the time."""
