"""The mapping `watch.limits`: from where each kind of anomaly is reported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LimitsConfig:
    """From where an anomaly is reported, by its kind, or ends the run. Null, where it is allowed, reports none of that
    kind."""

    spike: float | None = 8.0
    """A loss this many robust standard deviations above the median of the last ones is a spike."""
    spike_window: int = 100
    """Number of past losses that a new one is compared with."""
    skipped_steps: int = 10
    """The run stops with a diagnosis after this many consecutive steps with a non-finite loss or gradient."""
    slow_step: float | None = 3.0
    """A step is reported if it takes this many times the median and at least a second longer."""
    slow_pace: float | None = 1.5
    """Twenty consecutive steps are reported if their median is this many times the best there was."""
    data_wait: float | None = 0.1
    """Waiting for data is reported from this share of the time on."""
    straggler: float | None = 0.1
    """A process is reported when all others wait for it for this share of the time."""
