"""Heat maps of a run by layer and step: the load of the fullest expert, and what FP8 codes hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.observe.report.run_record import RunRecord, number

MOST_COLUMNS = 120
"""Most columns of a map; each is the mean of neighbouring logged steps."""


@dataclass(frozen=True)
class Kind:
    """What is mapped."""

    key: str
    """Of the metrics: number of a layer to a value."""
    least: float
    """Value of the palest color."""
    title: str
    """Of the section."""
    pale: str
    """What the palest color means."""
    form: str = ".2f"
    """Of a value."""


KINDS = (
    Kind(
        "expert_loads", 1.0, "Load of the fullest expert, by layer and step", "1, as many tokens as every other expert"
    ),
    Kind(
        "matmul_reach",
        0.0,
        "FP8: largest magnitude against what codes reach, by layer and step",
        "0; above 1 values were cut off",
    ),
    Kind(
        "matmul_most_flushed",
        0.0,
        "FP8: share of values flushed to zero, by layer and step",
        "0; of the tensor of the layer that has most",
        ".2%",
    ),
    Kind(
        "matmul_most_saturated",
        0.0,
        "FP8: share of values cut off, by layer and step",
        "0; of the tensor of the layer that has most",
        ".3%",
    ),
)


@dataclass(frozen=True)
class LoadMap:
    """What the page draws."""

    label: str
    kind: Kind
    layers: Sequence[int]
    steps: Sequence[str]
    """The steps of each column."""
    rows: Sequence[Sequence[tuple[float, str]]]
    """Of each layer and column, the share of the color and the value; without one, (0, "")."""
    most: str
    """The value of the fullest color."""


def load_maps(runs: Sequence[RunRecord]) -> dict[str, list[LoadMap]]:
    """By title of a section, the maps of the runs that have such values."""
    found = {kind.title: [made for run in runs if (made := _map(run, kind)) is not None] for kind in KINDS}
    return {title: maps for title, maps in found.items() if maps}


def _map(run: RunRecord, kind: Kind) -> LoadMap | None:
    lines = [(line["step"], line[kind.key]) for line in run.metrics if isinstance(line.get(kind.key), dict)]
    layers = sorted({int(name) for _, loads in lines for name in loads if name.isdecimal()})
    if not layers:
        return None
    width = -(-len(lines) // MOST_COLUMNS)
    columns = [lines[first : first + width] for first in range(0, len(lines), width)]
    means = [[_mean(column, layer) for column in columns] for layer in layers]
    most = max((value for row in means for value in row if value is not None), default=kind.least)
    share = lambda value: (value - kind.least) / (most - kind.least) if most > kind.least else 0.0
    written = lambda value: (0.0, "") if value is None else (max(0.0, share(value)), f"{value:{kind.form}}")
    rows = [[written(value) for value in row] for row in means]
    spans = [str(one[0][0]) if len(one) == 1 else f"{one[0][0]} to {one[-1][0]}" for one in columns]
    return LoadMap(run.label, kind, layers, spans, rows, f"{most:{kind.form}}")


def _mean(column: Sequence[tuple[int, dict[str, float]]], layer: int) -> float | None:
    values = [value for _, loads in column if (value := number(loads, str(layer))) is not None]
    return sum(values) / len(values) if values else None
