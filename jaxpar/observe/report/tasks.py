"""Table of the results of `python -m jaxpar.evaluate` on runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxpar.observe.report.run_record import RunRecord, moment, number
from jaxpar.observe.report.sections import Tables, side_by_side
from jaxpar.pages.render import Table

type Results = dict[tuple[str, str], list[str]]
"""(task, metric) to the value with its standard error, examples, step and time."""


def tasks(runs: Sequence[RunRecord]) -> Tables:
    """The newest number of each metric of each task; of several runs, their values side by side."""
    records = [_results(run) for run in runs]
    if len(runs) == 1:
        rows = [[*names, *values] for names, values in records[0].items()]
        heads = ("task", "metric", "value and standard error", "examples", "after step", "time (UTC)")
        return [("", Table(heads, rows, numbers=(2, 3, 4)))] if rows else []
    names = list(dict.fromkeys(name for results in records for name in results))
    values = [(", ".join(name), [results[name][0] if name in results else "" for results in records]) for name in names]
    return side_by_side(runs, values)


def _results(run: RunRecord) -> Results:
    newest: Results = {}
    for record in run.evaluations:
        time, step = moment(record), number(record, "step")
        when = ["" if step is None else f"{step:.0f}", "" if time is None else f"{time:%Y-%m-%d %H:%M}"]
        for task, examples, metric, value in _metrics(record):
            newest[task, metric] = [value, examples, *when]
    return newest


def _metrics(record: dict[str, object]) -> Iterator[tuple[str, str, str, str]]:
    """(task, examples, metric, value with its error) of a record; what is damaged is left out."""
    for task, values in _items(record.get("tasks")):
        examples = number(values, "examples") if isinstance(values, dict) else None
        for metric, pair in _items(values.get("metrics") if isinstance(values, dict) else None):
            if not isinstance(pair, list) or len(pair) != 2:
                continue
            value, error = (number({"": one}, "") for one in pair)
            if value is not None:
                text = f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"
                yield task, "" if examples is None else f"{examples:,.0f}", metric, text


def _items(record: object) -> list[tuple[str, object]]:
    return list(record.items()) if isinstance(record, dict) else []
