"""The parts of the page under the curves, each as HTML; the values of two runs are side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from jaxpar.config import config_to_dict
from jaxpar.config.reading.typed import spell
from jaxpar.observe.html import Hot, table
from jaxpar.observe.report.curves import points
from jaxpar.observe.report.figures import host_share, memory_words
from jaxpar.observe.report.run_record import RunRecord, moment, number
from jaxpar.units import percent, seconds, size

MOST_EVENTS = 500
"""Most events of a run on the page; of more the first and the last are shown."""


def section(name: str, title: str, body: str, *, opened: bool = True) -> str:
    """A collapsible part; empty where the body is empty."""
    if not body:
        return ""
    state = " open" if opened else ""
    return f'<details class="part" id="{name}"{state}><summary><h2>{escape(title)}</h2></summary>{body}</details>'


def side_by_side(runs: Sequence[RunRecord], rows: Sequence[tuple[str, Sequence[str]]], *, mark: bool = True) -> str:
    """A table of (name, a value per run); rows without any value are left out, with `mark` those that differ marked."""
    kept = [(name, values) for name, values in rows if any(values)]
    if not kept:
        return ""
    marked = [[name, *(map(Hot, values) if mark and len(set(values)) > 1 else values)] for name, values in kept]
    heads = ["", *(run.label for run in runs)] if len(runs) > 1 else ["", ""]
    return table(heads, marked, kind="pairs")


def configuration_difference(runs: Sequence[RunRecord]) -> str:
    """Keys of the configuration that the two runs do not share."""
    configs = [run.config for run in runs]
    if any(config is None for config in configs):
        return "<p>The configuration of a run is not known.</p>"
    first, second = (_flat(config_to_dict(config)) for config in configs if config is not None)
    own = ("run.name", "run.dir")
    names = [name for name in dict.fromkeys([*first, *second]) if name not in own]
    values = [(name, *(spell(found[name]) if name in found else "" for found in (first, second))) for name in names]
    rows = [row for row in values if row[1] != row[2]]
    if not rows:
        return "<p>The two runs have the same configuration.</p>"
    return table(("key", *(run.label for run in runs)), rows, kind="pairs")


def plan(runs: Sequence[RunRecord]) -> str:
    """Each run's decisions with reasons: from its log, or else from `plan.json`."""
    if len(runs) == 1 and (rows := logged_plan(runs[0])):
        return table(("plan", "value", "why"), rows, kind="plan")
    values = [_plan_values(run) for run in runs]
    names = list(dict.fromkeys(name for found in values for name in found))
    return side_by_side(runs, [(name, [found.get(name, "") for found in values]) for name in names])


def logged_plan(run: RunRecord) -> list[tuple[str, str, str]]:
    """(name, value, reason) of the last start."""
    rows = run.last_start.get("plan")
    if not isinstance(rows, list):
        return []
    return [tuple(map(str, row)) for row in rows if isinstance(row, list) and len(row) == 3]  # pyright: ignore


def _plan_values(run: RunRecord) -> dict[str, str]:
    logged = logged_plan(run)
    return {name: value for name, value, _ in logged} if logged else {k: spell(v) for k, v in _flat(run.plan).items()}


def memory(runs: Sequence[RunRecord]) -> str:
    """Predicted and measured memory, as bars on one scale."""
    bars: list[tuple[str, float | None, str]] = []  # name, bytes, class
    for run in runs:
        whose = f"{run.label}: " if len(runs) > 1 else ""
        measured = number(run.summary, "peak_bytes")
        if measured is None:
            measured = max((value for _, value in points(run, "memory_bytes")), default=None)
        where = "on the fullest device" if memory_words(run) == "device" else "of host memory in the process"
        bars.append((f"{whose}predicted per device", number(run.summary, "predicted_bytes"), "predicted"))
        bars.append((f"{whose}peak {where}", measured, "measured"))
    known = [(name, value, kind) for name, value, kind in bars if value is not None]
    if not known:
        return ""
    most = max(1.0, *(value for _, value, _ in known))
    lines = "".join(
        f'<div class="bar"><span>{escape(name)}</span>'
        f'<i><b class="{kind}" style="width:{100 * max(value, 0.0) / most:.2f}%"></b></i><em>{size(value)}</em></div>'
        for name, value, kind in known
    )
    if any(memory_words(run) == "host" for run in runs):
        lines += (
            "<p class='dim'>CPU devices report no memory of their own. What was measured is the whole process with "
            "Python, the compiler and all its virtual devices: not to be compared with a prediction per device.</p>"
        )
    return lines


def timing(runs: Sequence[RunRecord]) -> str:
    """Where the time of the last start went."""
    names = (
        "compilation", "first step", "steady step, mean", "host's own part of it",
        "slowest logged stretch, per step", "all steps", "evaluations, saves and the rest", "from start to end",
    )  # fmt: skip
    columns = [_times(run) for run in runs]
    return side_by_side(runs, [(name, [column[i] for column in columns]) for i, name in enumerate(names)], mark=False)


def _times(run: RunRecord) -> list[str]:
    told = {key: number(run.summary, f"{key}_seconds") for key in ("compile", "first_step", "steady_step", "train")}
    own = host_share(run)
    slowest = max((value for _, value in points(run, "step_time_s")[1:]), default=None)
    whole = _wall_seconds(run)
    rest = None
    if whole is not None and told["compile"] is not None and told["train"] is not None:
        rest = max(0.0, whole - told["compile"] - told["train"])
    words = lambda value: "" if value is None else seconds(value)
    return [
        *(words(told[key]) for key in ("compile", "first_step", "steady_step")),
        "" if own is None else percent(own),
        *(words(value) for value in (slowest, told["train"], rest, whole)),
    ]


def _wall_seconds(run: RunRecord) -> float | None:
    """From the last start to its last event; None for a run that has not ended."""
    starts = [index for index, event in enumerate(run.events) if event["event"] == "start"]
    since = run.events[starts[-1] :] if starts else []
    if not any(event["event"] == "end" for event in since):
        return None
    began, ended = moment(since[0]), moment(since[-1])
    return (ended - began).total_seconds() if began and ended else None


def environment(runs: Sequence[RunRecord]) -> str:
    """Versions, devices and the command."""
    values = [dict(_environment_rows(run.environment)) for run in runs]
    names = list(dict.fromkeys(name for found in values for name in found))
    return side_by_side(runs, [(name, [found.get(name, "") for found in values]) for name in names])


def _environment_rows(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    git = told.get("git")
    for name, value in told.items():
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


def events(runs: Sequence[RunRecord]) -> str:
    """The events, with their time and step."""
    parts = []
    for run in runs:
        rows = [_event_row(event) for event in run.events]
        rows = [row for row in rows if row is not None]
        if not rows:
            continue
        if len(runs) > 1:
            parts.append(f"<h3>{escape(run.label)}</h3>")
        left_out = len(rows) - MOST_EVENTS
        if left_out > 0:
            half = MOST_EVENTS // 2
            rows = [*rows[:half], ("", "", f"{left_out} events between are left out"), *rows[-half:]]
        parts.append(table(("time (UTC)", "after step", "what"), rows, numbers=(1,), kind="events"))
    return "".join(parts)


def _event_row(event: Mapping[str, Any]) -> tuple[str, str, str] | None:
    time, step = moment(event), _text(event.get("step", ""))
    match event["event"]:
        case "start":
            what = f"started, to go to step {_text(event.get('steps', '?'))}"
        case "message":
            what = _text(event.get("text", ""))
        case "anomaly":
            what = Hot(_text(event.get("text", "")))
        case "rewound":
            what = f"went back to the checkpoint of step {_text(event.get('to', '?'))}"
        case "saved":
            what = f"saved {_text(event.get('path', ''))}"
        case "end":
            what = "came to its end"
        case "close" if event.get("ended") is False:
            what = Hot("failed")
        case _:
            return None
    return ("" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"), step, what


def samples(runs: Sequence[RunRecord]) -> str:
    """What the model wrote, after its prompt."""
    parts = []
    for run in runs:
        told = next((event for event in reversed(run.events) if event["event"] == "sample"), None)
        if told is None:
            continue
        name = f"<h3>{escape(run.label)}</h3>" if len(runs) > 1 else ""
        prompt, more = (escape(_text(told.get(key, ""))) for key in ("prompt", "continuation"))
        parts.append(f"{name}<pre class='sample'><span class='dim'>{prompt}</span>{more}</pre>")
    said = "<p class='dim'>In grey the held-out prompt, then what the model wrote.</p>"
    return "".join([said, *parts]) if parts else ""


def configurations(runs: Sequence[RunRecord]) -> str:
    """Every key with its value."""
    flat = [{} if run.config is None else _flat(config_to_dict(run.config)) for run in runs]
    names = list(dict.fromkeys(name for values in flat for name in values))
    return side_by_side(
        runs, [(name, [spell(values[name]) if name in values else "" for values in flat]) for name in names]
    )


def state(run: RunRecord, now: datetime) -> str:
    """The progress of the run, in a few words."""
    of = "" if run.config is None else f" of {run.config.run.steps}"
    last = run.events[-1] if run.events else {}
    ended = [event["event"] for event in run.events if event["event"] in ("start", "end")][-1:]
    if ended == ["end"] or (not run.events and run.summary):
        whole = run.config is not None and run.last_step >= run.config.run.steps
        return f"{'trained to' if whole else 'stopped after'} step {run.last_step}{of}"
    if last.get("event") == "close" and last.get("ended") is False:
        return f"failed after step {run.last_step}{of}"
    seen = moment(last)
    ago = f", heard of last {seen:%Y-%m-%d %H:%M} UTC" if seen and seen <= now else ""
    return f"at step {run.last_step}{of}, still running or killed{ago}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        found |= _flat(value, f"{key}.") if isinstance(value, dict) and value else {key: value}
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else spell(value)
