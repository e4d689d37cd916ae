"""The curves of a run as the page's script reads them: short lists of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from jaxpar.config.ramp import stretches
from jaxpar.config.schema import DataConfig
from jaxpar.observe.events import StepRecord
from jaxpar.observe.metrics import SET, metric_of
from jaxpar.observe.report.run_record import LARGEST_STEP, RunRecord, number

MOST_POINTS = 2000
"""Most points of a curve on the page: more than a screen has columns."""


@dataclass(frozen=True)
class Chart:
    """One chart of the report."""

    title: str
    unit: str
    """Format of its values in the script: nats, plain, rate, seconds, bytes or share."""
    series: tuple[str, ...]
    """Fields of `metrics.jsonl`, in the order in which they are drawn; `a.b` is the field `b` of `a`."""
    smooth: bool = True
    """Whether smoothing applies."""
    unless_zero: bool = False
    """Whether a curve that is 0 throughout is left out."""


CHARTS = (
    Chart("Loss, nats per token", "nats", ("loss", "eval_loss")),
    Chart("Reward", "plain", ("metrics.reward", "metrics.eval_reward")),
    Chart("Share of right answers", "share", ("metrics.eval_success",), smooth=False),
    Chart("Tokens of an answer", "plain", ("metrics.answer_tokens",)),
    Chart("Entropy of drawn tokens, nats", "nats", ("metrics.entropy",)),
    Chart("Gradient norm", "plain", ("grad_norm",)),
    Chart("Learning rate", "plain", ("learning_rate",), smooth=False),
    Chart("Learning rate of the layers' matrices", "plain", ("matrix_learning_rate",), smooth=False),
    Chart("Tokens per second", "rate", ("tokens_per_second",)),
    Chart("Time of a step", "seconds", ("step_time_s",)),
    Chart("Devices waiting for data, share of the time", "share", ("data_wait",), unless_zero=True),
    Chart("Memory in use", "bytes", ("memory_bytes",), smooth=False),
    Chart("Model FLOPs utilisation of the 16-bit peak", "share", ("mfu",)),
    Chart("Auxiliary losses of layers", "plain", ("metrics.auxiliary_loss",), unless_zero=True),
    Chart("Loss scale", "plain", ("loss_scale",), smooth=False),
)

type Points = list[tuple[int, float]]


def page_data(runs: list[RunRecord]) -> dict[str, object]:
    """The script's data: `charts` that are not empty, and `runs` with their series."""
    charts = [CHARTS[0], *_charts_of_sets(runs), *CHARTS[1:], *_charts_of_blocks(runs)]
    drawn = [_run(run, charts) for run in runs]
    there = {name for run in drawn for name in run["series"]}
    return {"charts": [asdict(chart) for chart in charts if there & set(chart.series)], "runs": drawn}


def _charts_of_sets(runs: Sequence[RunRecord]) -> list[Chart]:
    """A chart of the loss on each validation set that has a name."""
    metrics = (each for run in runs for line in run.metrics if isinstance(each := line.get("metrics"), Mapping))
    names = dict.fromkeys(name for one in metrics for name in one if name.startswith(SET) and name.isidentifier())
    return [Chart(f"Validation loss on {name.removeprefix(SET)}", "nats", (f"metrics.{name}",)) for name in names]


def _charts_of_blocks(runs: Sequence[RunRecord]) -> list[Chart]:
    """A chart for each value that blocks report: each block has a mapping in a line beside the fields of the record."""
    known = {field.name for field in fields(StepRecord)}
    names = {
        f"{block}.{name}": None
        for run in runs
        for line in run.metrics
        for block, reported in line.items()
        if block not in known and isinstance(reported, Mapping)
        for name in reported
        if name.isidentifier()
    }
    return [Chart(metric_of(name).title, metric_of(name).unit, (name,)) for name in names]


def is_thinned(run: RunRecord) -> bool:
    """Whether a curve leaves out points."""
    return len(run.metrics) > MOST_POINTS


def _run(run: RunRecord, charts: Sequence[Chart]) -> dict[str, Any]:
    series: dict[str, Points] = {}
    for chart in charts:
        series_points = {name: points(run, name) for name in chart.series}
        if not chart.unless_zero or any(value for curve in series_points.values() for _, value in curve):
            series |= series_points
    config = run.config
    return {
        "name": run.label,
        "baseline": run.baseline,
        "batches": _batches(config.data) if config else [[0, 0, 1]],
        "clock": _columns(thin(training_clock(run))),
        "restarts": sorted({step for event in run.events if (step := _restart(event))}),
        "skipped": skipped_at(run),
        "anomalies": anomalies(run),
        "series": {name: _columns(thin(series_points)) for name, series_points in series.items() if series_points},
    }


def _batches(data: DataConfig) -> list[list[int]]:
    """Steps and tokens before the first batch of each size, and its tokens, in order."""
    return [[one.batch, *(rows * data.sequence_length for rows in (one.example, one.rows))] for one in stretches(data)]


def points(run: RunRecord, name: str) -> Points:
    """(step, value) of each logged step that has a finite value."""
    return [(line["step"], value) for line in run.metrics if (value := _value(line, name)) is not None]


def _value(line: Mapping[str, object], name: str) -> float | None:
    """A field, or `a.b` of the field `a`."""
    first, _, inner = name.partition(".")
    within = line.get(first)
    if not inner:
        return number(line, name)
    return number(within, inner) if isinstance(within, Mapping) else None


def training_clock(run: RunRecord) -> Points:
    """(step, seconds spent in steps up to it), evaluations and saves left out."""
    seconds, before, clock = 0.0, 0, [(0, 0.0)]
    for step, step_time in points(run, "step_time_s"):
        seconds += (step - before) * max(step_time, 0.0)
        before = step
        clock.append((step, seconds))
    return clock


def skipped_at(run: RunRecord) -> list[int]:
    """Logged steps before which, since the previous logged step, a step was skipped."""
    skipped = points(run, "skipped_steps")
    return [step for (_, earlier), (step, later) in pairwise([(0, 0.0), *skipped]) if later > earlier][:MOST_POINTS]


def anomalies(run: RunRecord) -> list[tuple[int, str]]:
    """(step, text) of the anomalies of a run."""
    logged = [event for event in run.events if event["event"] == "anomaly"]
    steps_and_texts = [(event.get("step"), str(event.get("text"))) for event in logged]
    return [(step, text) for step, text in steps_and_texts if type(step) is int and 0 <= step <= LARGEST_STEP][
        -MOST_POINTS:
    ]


def thin(curve: Points, most: int = MOST_POINTS) -> Points:
    """Thin a curve to at most `most` points: minimum and maximum of each stretch, to preserve spikes, and both ends."""
    if len(curve) <= most:
        return curve
    stretches = most // 2 - 1
    indices = {0, len(curve) - 1}
    for part in range(stretches):
        stretch = range(part * len(curve) // stretches, (part + 1) * len(curve) // stretches)
        indices |= {min(stretch, key=lambda i: curve[i][1]), max(stretch, key=lambda i: curve[i][1])}
    return [curve[i] for i in sorted(indices)]


def _columns(curve: Points) -> list[list[float]]:
    """Steps, and values to six digits, which is more than a screen shows."""
    return [[step for step, _ in curve], [float(f"{value:.6g}") for _, value in curve]]


def _restart(event: dict[str, object]) -> int:
    step = event.get("step")
    return step if event["event"] == "start" and type(step) is int and 0 < step <= LARGEST_STEP else 0
