"""Results of a task: numbers with standard errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Metric(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float | None
    """Standard error; None if there are too few values to estimate it."""


@dataclass(frozen=True)
class Outcome:
    """The results of a task."""

    kind: str
    examples: int
    metrics: Mapping[str, Metric]
    details: Sequence[Mapping[str, Any]] = ()
    """Details of each example, as JSON."""


def mean(values: Sequence[float]) -> Metric:
    """The mean of independent values; the error is their sample standard deviation over the root of their number."""
    array = np.asarray(values, np.float64)
    error = None if len(array) < 2 else float(array.std(ddof=1) / math.sqrt(len(array)))
    return Metric(float(array.mean()), error)


def ratio(sums: Sequence[float], weights: Sequence[float]) -> Metric:
    """The sum of `sums` over that of `weights`.

    The error takes pairs of the two as independent and is that of a ratio estimator (Cochran, Sampling Techniques,
    section 2.11).
    """
    above, below = np.asarray(sums, np.float64), np.asarray(weights, np.float64)
    value, size = float(above.sum() / below.sum()), len(above)
    if size < 2:
        return Metric(value, None)
    spread = float(((above - value * below) ** 2).sum()) * size / (size - 1)
    return Metric(value, math.sqrt(spread) / float(below.sum()))


def scaled(metric: Metric, factor: float) -> Metric:
    """A metric in another unit."""
    return Metric(metric.value * factor, None if metric.error is None else metric.error * abs(factor))


def exponential(metric: Metric) -> Metric:
    """The exponential of a metric, its error to first order."""
    value = math.exp(min(metric.value, 700.0))
    return Metric(value, None if metric.error is None else metric.error * value)
