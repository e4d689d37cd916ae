"""Heat maps of a run by layer and step, of the numbers that features and blocks record of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.observe.metrics import least_of
from jaxpar.observe.report.run_record import RunRecord, number

MOST_COLUMNS = 120
"""Most columns of a map; each is the mean of neighbouring logged steps."""


@dataclass(frozen=True)
class LoadMap:
    """A map that the page draws: layers by steps."""

    label: str
    key: str
    """Name of the numbers among `features` of the metrics."""
    layers: Sequence[int]
    steps: Sequence[str]
    """The steps of each column."""
    rows: Sequence[Sequence[tuple[float, str]]]
    """Color share and value text of each layer and column; (0, "") without a value."""
    least: str
    """The value of the palest color."""
    most: str
    """The value of the fullest color."""


def load_maps(runs: Sequence[RunRecord]) -> dict[str, list[LoadMap]]:
    """The maps of the runs that have such values, by title of the section."""
    names = dict.fromkeys(name for run in runs for line in run.metrics for name in line.get("features") or {})
    maps = {name: [made for run in runs if (made := _map(run, name)) is not None] for name in names}
    return {f"{name.replace('_', ' ')}, by layer and step": each for name, each in maps.items() if each}


def _map(run: RunRecord, key: str) -> LoadMap | None:
    each = ((line["step"], (line.get("features") or {}).get(key)) for line in run.metrics)
    lines = [(step, values) for step, values in each if isinstance(values, dict)]
    layers = sorted({int(name) for _, loads in lines for name in loads if name.isdecimal()})
    if not layers:
        return None
    width = -(-len(lines) // MOST_COLUMNS)
    columns = [lines[first : first + width] for first in range(0, len(lines), width)]
    means = [[_mean(column, layer) for column in columns] for layer in layers]
    least = least_of(key)
    most = max((value for row in means for value in row if value is not None), default=least)
    share = lambda value: (value - least) / (most - least) if most > least else 0.0
    written = lambda value: (0.0, "") if value is None else (max(0.0, share(value)), f"{value:.2f}")
    rows = [[written(value) for value in row] for row in means]
    spans = [str(one[0][0]) if len(one) == 1 else f"{one[0][0]} to {one[-1][0]}" for one in columns]
    return LoadMap(run.label, key, layers, spans, rows, f"{least:.2f}", f"{most:.2f}")


def _mean(column: Sequence[tuple[int, dict[str, float]]], layer: int) -> float | None:
    values = [value for _, loads in column if (value := number(loads, str(layer))) is not None]
    return sum(values) / len(values) if values else None
