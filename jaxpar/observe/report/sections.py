"""The parts of the page under the curves, as tables; the values of several runs are side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from jaxpar.config import config_to_dict
from jaxpar.config.reading.typed import spell
from jaxpar.observe.report.curves import points
from jaxpar.observe.report.figures import host_share, memory_words
from jaxpar.observe.report.run_record import RunRecord, moment, number
from jaxpar.pages.render import Cell, Table
from jaxpar.pages.units import percent, seconds, size

MOST_EVENTS = 500
"""Most events of a run on the page; of more the first and the last are shown."""


type Tables = list[tuple[str, Table]]
"""Tables of a section, each with a heading if there are several."""


def side_by_side(runs: Sequence[RunRecord], rows: Sequence[tuple[str, Sequence[str]]], *, mark: bool = True) -> Tables:
    """A table of (name, a value per run); rows without any value are left out, with `mark` those that differ marked."""
    nonempty = [(name, values) for name, values in rows if any(values)]
    if not nonempty:
        return []
    marked = [
        [name, *(Cell(value, hot=mark and len(set(values)) > 1) for value in values)] for name, values in nonempty
    ]
    heads = ["", *(run.label for run in runs)] if len(runs) > 1 else ["", ""]
    return [("", Table(heads, marked, kind="pairs"))]


def different_keys(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """A value per run of each key of the configuration that runs do not share; runs without one are empty."""
    configs = [None if run.config is None else _flat(config_to_dict(run.config)) for run in runs]
    names = dict.fromkeys(name for config in configs if config is not None for name in config)
    shown = lambda config, name: spell(config[name]) if config is not None and name in config else ""
    values = {
        name: [shown(config, name) for config in configs] for name in names if name not in ("run.name", "run.dir")
    }
    known = [index for index, config in enumerate(configs) if config is not None]
    return {name: of_runs for name, of_runs in values.items() if len({of_runs[index] for index in known}) > 1}


def configuration_difference(runs: Sequence[RunRecord]) -> Table | str:
    """Keys of the configuration that runs do not share, or why there are none."""
    if any(run.config is None for run in runs):
        return "The configuration of a run is not known."
    rows = [(name, *values) for name, values in different_keys(runs).items()]
    if not rows:
        return "The two runs have the same configuration."
    return Table(("key", *(run.label for run in runs)), rows, kind="pairs")


def plan(runs: Sequence[RunRecord]) -> Tables:
    """Decisions of each run with reasons, from its log, otherwise from `plan.json`."""
    if len(runs) == 1 and (rows := logged_plan(runs[0])):
        return [("", Table(("plan", "value", "why"), rows, kind="plan"))]
    values = [_plan_values(run) for run in runs]
    names = list(dict.fromkeys(name for facts in values for name in facts))
    return side_by_side(runs, [(name, [facts.get(name, "") for facts in values]) for name in names])


def logged_plan(run: RunRecord) -> list[tuple[str, str, str]]:
    """(name, value, reason) of the last start."""
    rows = run.last_start.get("plan")
    if not isinstance(rows, list):
        return []
    return [tuple(map(str, row)) for row in rows if isinstance(row, list) and len(row) == 3]  # pyright: ignore


def _plan_values(run: RunRecord) -> dict[str, str]:
    logged = logged_plan(run)
    return {name: value for name, value, _ in logged} if logged else {k: spell(v) for k, v in _flat(run.plan).items()}


def memory(runs: Sequence[RunRecord]) -> list[tuple[str, float, str, str]]:
    """Predicted and measured memory as bars on one scale: name, share of the largest, bytes, class."""
    known: list[tuple[str, float, str]] = []
    for run in runs:
        whose = f"{run.label}: " if len(runs) > 1 else ""
        measured = number(run.summary, "peak_bytes")
        if measured is None:
            measured = max((value for _, value in points(run, "memory_bytes")), default=None)
        where = "on the fullest device" if memory_words(run) == "device" else "of host memory in the process"
        predicted = number(run.summary, "predicted_bytes")
        known += [] if predicted is None else [(f"{whose}predicted per device", predicted, "predicted")]
        known += [] if measured is None else [(f"{whose}peak {where}", measured, "measured")]
    most = max(1.0, *(value for _, value, _ in known)) if known else 1.0
    return [(name, max(value, 0.0) / most, size(value), kind) for name, value, kind in known]


def measured_on_host(runs: Sequence[RunRecord]) -> bool:
    """Whether a run's memory is that of a whole process."""
    return any(memory_words(run) == "host" for run in runs)


def timing(runs: Sequence[RunRecord]) -> Tables:
    """Breakdown of the time since the last start."""
    names = (
        "compilation", "first step", "steady step, mean", "host's own part of it",
        "slowest logged stretch, per step", "all steps", "evaluations, saves and the rest", "from start to end",
    )  # fmt: skip
    columns = [_times(run) for run in runs]
    return side_by_side(runs, [(name, [column[i] for column in columns]) for i, name in enumerate(names)], mark=False)


def _times(run: RunRecord) -> list[str]:
    entries = {key: number(run.summary, f"{key}_seconds") for key in ("compile", "first_step", "steady_step", "train")}
    host = host_share(run)
    slowest = max((value for _, value in points(run, "step_time_s")[1:]), default=None)
    wall = _wall_seconds(run)
    rest = None
    if wall is not None and entries["compile"] is not None and entries["train"] is not None:
        rest = max(0.0, wall - entries["compile"] - entries["train"])
    words = lambda value: "" if value is None else seconds(value)
    return [
        *(words(entries[key]) for key in ("compile", "first_step", "steady_step")),
        "" if host is None else percent(host),
        *(words(value) for value in (slowest, entries["train"], rest, wall)),
    ]


def _wall_seconds(run: RunRecord) -> float | None:
    """Seconds from the last start to its last event; None for a run that has not ended."""
    starts = [index for index, event in enumerate(run.events) if event["event"] == "start"]
    since = run.events[starts[-1] :] if starts else []
    if not any(event["event"] == "end" for event in since):
        return None
    began, ended = moment(since[0]), moment(since[-1])
    return (ended - began).total_seconds() if began and ended else None


def environment(runs: Sequence[RunRecord]) -> Tables:
    """Versions, devices and the command."""
    values = [dict(_environment_rows(run.environment)) for run in runs]
    names = list(dict.fromkeys(name for facts in values for name in facts))
    return side_by_side(runs, [(name, [facts.get(name, "") for facts in values]) for name in names])


def _environment_rows(entries: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    git = entries.get("git")
    for name, value in entries.items():
        if name == "git" and isinstance(git, dict):
            changed = {True: ", with changes", None: ", changes not known"}.get(git.get("changed"), "")
            yield "git commit", f"{git.get('commit')}{changed}"
        elif isinstance(value, dict):
            for inner, text in value.items():
                if inner.endswith("_bytes") and (amount := number(value, inner)) is not None:
                    yield f"{name}: {inner.removesuffix('_bytes')}", size(amount)
                else:
                    yield f"{name}: {inner}", _text(text)
        elif value is not None:
            yield name, _text(value)


def events(runs: Sequence[RunRecord]) -> Tables:
    """The events, with their time and step."""
    tables = []
    for run in runs:
        rows = [row for event in run.events if (row := _event_row(event)) is not None]
        if not rows:
            continue
        left_out = len(rows) - MOST_EVENTS
        if left_out > 0:
            half = MOST_EVENTS // 2
            rows = [*rows[:half], ("", "", f"{left_out} events between are left out"), *rows[-half:]]
        table = Table(("time (UTC)", "after step", "what"), rows, numbers=(1,), kind="events")
        tables.append((run.label if len(runs) > 1 else "", table))
    return tables


def _event_row(event: Mapping[str, object]) -> tuple[str, str, str] | None:
    time, step = moment(event), _text(event.get("step", ""))
    match event["event"]:
        case "start":
            what = f"started, to go to step {_text(event.get('steps', '?'))}"
        case "message":
            what = _text(event.get("text", ""))
        case "anomaly":
            what = Cell(_text(event.get("text", "")), hot=True)
        case "rewound":
            what = f"went back to the checkpoint of step {_text(event.get('to', '?'))}"
        case "saved":
            what = f"saved {_text(event.get('path', ''))}"
        case "end":
            what = "came to its end"
        case "failed":
            what = Cell(f"failed: {_text(event.get('error', ''))}", hot=True)
        case "close" if event.get("ended") is False:
            what = Cell("failed", hot=True)
        case _:
            return None
    return ("" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"), step, what


def samples(runs: Sequence[RunRecord]) -> list[tuple[str, str, str]]:
    """(run, prompt, what the model wrote after it)."""
    last = [(run.label, _last_samples(run)) for run in runs]
    text = lambda event, key: _text(event.get(key, ""))
    return [(label, text(event, "prompt"), text(event, "continuation")) for label, sampled in last for event in sampled]


def _last_samples(run: RunRecord) -> list[Mapping[str, object]]:
    """The samples of a run that came together last."""
    at = [index for index, event in enumerate(run.events) if event["event"] == "sample"]
    first = next((index for index in reversed(at) if index - 1 not in at), 0)
    return [run.events[index] for index in at if index >= first]


def configurations(runs: Sequence[RunRecord]) -> Tables:
    """Configuration keys with their values."""
    flat = [{} if run.config is None else _flat(config_to_dict(run.config)) for run in runs]
    names = list(dict.fromkeys(name for values in flat for name in values))
    return side_by_side(
        runs, [(name, [spell(values[name]) if name in values else "" for values in flat]) for name in names]
    )


def state(run: RunRecord, now: datetime) -> str:
    """The progress of the run, in a few words."""
    of = "" if run.config is None else f" of {run.config.run.steps}"
    last = run.events[-1] if run.events else {}
    if run.ended:
        return f"{'trained to' if run.complete else 'stopped after'} step {run.last_step}{of}"
    if last.get("event") == "close" and last.get("ended") is False:
        return f"failed after step {run.last_step}{of}"
    seen = moment(last)
    ago = f", heard of last {seen:%Y-%m-%d %H:%M} UTC" if seen and seen <= now else ""
    return f"at step {run.last_step}{of}, still running or killed{ago}"


def _flat(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        flat |= _flat(value, f"{key}.") if isinstance(value, dict) and value else {key: value}
    return flat


def _text(value: object) -> str:
    return value if isinstance(value, str) else spell(value)
