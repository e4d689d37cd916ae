"""The mapping `watch.limits`: from where each kind of anomaly is reported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LimitsConfig:
    """From where an anomaly is reported, by its kind. Null reports none of that kind."""

    slow_step: float | None = 3.0
    """A step is reported if it takes this many times the median and at least a second longer."""
    slow_pace: float | None = 1.5
    """Twenty consecutive steps are reported if their median is this many times the best there was."""
    data_wait: float | None = 0.1
    """Waiting for data is reported from this share of the time on."""
    straggler: float | None = 0.1
    """A process is reported when all others wait for it for this share of the time."""
