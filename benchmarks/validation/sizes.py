"""Errors of predictions by the size of a run, and of runs whose tensor ranks are on several hosts.

A source counts by its rows here, since most sources have no runs of some size; `source_bias` counts each source once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median

import numpy as np

from benchmarks.validation.judged import Judged
from jaxpar.units import percent

SIZES: Mapping[str, float] = {"1-64 GPUs": 64, "65-512 GPUs": 512, "above 512 GPUs": inf}
"""Classes of runs, each with the most GPUs of it."""
ACROSS = "tensor ranks across hosts"
"""The class of runs with more tensor ranks than a host has GPUs; they are in one of `SIZES` too."""


@dataclass(frozen=True)
class SizeErrors:
    """Errors of tokens/s/GPU of a class of runs; above 0 where runs were slower than predicted."""

    rows: int
    sources: int
    median_error: float
    p90_error: float
    bias: float
    """Median of the errors with their sign."""
    source_bias: float
    """Mean over sources of that."""
    least: float
    """The lowest error: the run that was fastest beside its prediction."""
    largest: float
    coverage: float
    """Share of the rows inside the interval of their prediction."""


def by_size(judged: Iterable[Judged]) -> dict[str, SizeErrors]:
    """The errors of each class that has runs."""
    classes: dict[str, list[Judged]] = {name: [] for name in (*SIZES, ACROSS)}
    for one in judged:
        if one.error is None:
            continue
        devices = one.layout.devices
        classes[next(name for name, most in SIZES.items() if devices <= most)].append(one)
        if one.layout.tensor > one.run.cluster.gpus_per_host:
            classes[ACROSS].append(one)
    return {name: _errors(own) for name, own in classes.items() if own}


def _errors(rows: Sequence[Judged]) -> SizeErrors:
    sources: dict[str, list[float]] = defaultdict(list)
    for one in rows:
        sources[one.run.source].append(one.error or 0.0)
    errors = [error for own in sources.values() for error in own]
    return SizeErrors(
        rows=len(rows),
        sources=len(sources),
        median_error=median(map(abs, errors)),
        p90_error=float(np.percentile(np.abs(errors), 90)),
        bias=median(errors),
        source_bias=fmean(median(own) for own in sources.values()),
        least=min(errors),
        largest=max(errors),
        coverage=fmean(bool(one.covered) for one in rows),
    )


HEAD = ("size", "rows", "sources", "median", "p90", "bias", "over sources", "least", "largest", "inside")


def cells(found: Mapping[str, SizeErrors]) -> list[tuple[str, ...]]:
    """A row of a table for each class, under `HEAD`."""
    signed = lambda value: f"{'+' if value >= 0 else '-'}{percent(abs(value))}"
    return [
        (
            name, str(own.rows), str(own.sources), percent(own.median_error), percent(own.p90_error), signed(own.bias),
            signed(own.source_bias), signed(own.least), signed(own.largest), f"{100 * own.coverage:.0f}%",
        )
        for name, own in found.items()
    ]  # fmt: skip
