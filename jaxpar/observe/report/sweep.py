"""The table of a sweep: a line for each run, with its results and the configuration keys in which runs differ."""

from __future__ import annotations

from datetime import datetime

from jaxpar.observe.report.figures import FIGURES
from jaxpar.observe.report.run_record import RunRecord, number
from jaxpar.observe.report.sections import different_keys, state
from jaxpar.pages.render import Cell, Table

RESULTS = {
    "validation loss, last": "validation loss",
    "training loss, last": "training loss",
    "tokens per second, median": "tokens/s",
    "model FLOPs utilisation of the 16-bit peak, median": "MFU",
    "time of a step, median": "a step",
    "time in steps": "time in steps",
    "memory, peak": "memory",
}
"""Figures that have a column, and its head."""


def sweep_table(runs: list[RunRecord], now: datetime) -> tuple[Table, str]:
    """The table, whose first column has no head, and a note on what it leaves out."""
    columns: dict[str, list[Cell]] = {}
    by_name = {figure.name: figure for figure in FIGURES}
    for name, head in RESULTS.items():
        figure = by_name[name]
        values = [figure.value(run) for run in runs]
        if any(value is not None for value in values):
            columns[head] = [Cell("" if value is None else figure.words(value), order=value) for value in values]
    results = len(columns)
    for key, values in different_keys(runs).items():
        columns[key] = [Cell(text, order=_number(text)) for text in values]
    columns["state"] = [Cell(state(run, now), order=run.last_step) for run in runs]
    rows = [(run.label, *cells) for run, *cells in zip(runs, *columns.values(), strict=True)]
    unknown = [run.label for run in runs if run.config is None]
    note = f"The configuration of {', '.join(unknown)} is not known." if unknown else ""
    return Table([*columns], rows, numbers=range(results)), note


def _number(text: str) -> float | None:
    try:
        return number({"value": float(text)}, "value")
    except ValueError:
        return None
