"""The heat map of a run with experts: the load of the fullest expert by layer and step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.observe.report.run_record import RunRecord, number

MOST_COLUMNS = 120
"""Most columns of a map; each is the mean of neighbouring logged steps."""
EVEN = 1.0
"""Load of an expert that has as many tokens as all others."""


@dataclass(frozen=True)
class LoadMap:
    """What the page draws."""

    label: str
    layers: Sequence[int]
    steps: Sequence[str]
    """The steps of each column."""
    rows: Sequence[Sequence[tuple[float, str]]]
    """Of each layer and column, the share of the color and the load; without a load, (0, "")."""
    most: str
    """The load of the fullest color."""


def load_maps(runs: Sequence[RunRecord]) -> list[LoadMap]:
    """A map of each run that has experts."""
    return [found for run in runs if (found := _load_map(run)) is not None]


def _load_map(run: RunRecord) -> LoadMap | None:
    lines = [(line["step"], line["expert_loads"]) for line in run.metrics if isinstance(line.get("expert_loads"), dict)]
    layers = sorted({int(name) for _, loads in lines for name in loads if name.isdecimal()})
    if not layers:
        return None
    width = -(-len(lines) // MOST_COLUMNS)
    columns = [lines[first : first + width] for first in range(0, len(lines), width)]
    means = [[_mean(column, layer) for column in columns] for layer in layers]
    most = max((value for row in means for value in row if value is not None), default=EVEN)
    share = lambda value: (value - EVEN) / (most - EVEN) if most > EVEN else 0.0
    rows = [
        [(0.0, "") if value is None else (max(0.0, share(value)), f"{value:.2f}") for value in row] for row in means
    ]
    spans = [str(one[0][0]) if len(one) == 1 else f"{one[0][0]} to {one[-1][0]}" for one in columns]
    return LoadMap(run.label, layers, spans, rows, f"{most:.2f}")


def _mean(column: Sequence[tuple[int, dict[str, float]]], layer: int) -> float | None:
    values = [value for _, loads in column if (value := number(loads, str(layer))) is not None]
    return sum(values) / len(values) if values else None
