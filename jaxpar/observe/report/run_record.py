"""A run as recorded in its folder, also while it is running, after a kill, or when a file is damaged."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jaxpar.config import Config, UserError, load_config
from jaxpar.config.paths import RUN_CONFIG
from jaxpar.config.plan import check_plan_version
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import did_you_mean, named
from jaxpar.observe.evaluations import EVALUATIONS_FILE

PLAN, SUMMARY, METRICS = "plan.json", "summary.json", "metrics.jsonl"
ENVIRONMENT, EVENTS = "environment.json", "events.jsonl"

LARGEST_STEP, LARGEST_NUMBER, LEAST_NUMBER = 10**12, 1e30, 1e-30
"""Larger values count as damage, smaller ones as 0: neither would be drawn correctly."""

LONGEST = 2**30
"""Most bytes of a file; the metrics of a million steps are half of it."""

DEEPEST = 12
"""Most levels of lists and objects in a file; deeper nesting counts as damage."""


@dataclass(frozen=True)
class RunRecord:
    """Everything that a page shows of a run. What a file lacks is empty or None, and `notes` has the reason."""

    label: str
    """Name of the run on the page."""
    folder: Path
    config: Config | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """Logged steps, each once, in order; values as in the file."""
    summary: dict[str, object] = field(default_factory=dict)
    plan: dict[str, object] = field(default_factory=dict)
    """The plan itself, without the rest of its file."""
    environment: dict[str, object] = field(default_factory=dict)
    events: list[dict[str, object]] = field(default_factory=list)
    evaluations: list[dict[str, object]] = field(default_factory=list)
    """Results that `python -m jaxpar.evaluate` added, in order."""
    notes: list[str] = field(default_factory=list)
    """Sentences about missing or unreadable files."""

    @property
    def last_start(self) -> dict[str, object]:
        """The event of the last start; empty where none was logged."""
        return next((event for event in reversed(self.events) if event["event"] == "start"), {})

    @property
    def came_from(self) -> list[str]:
        """The models from which the run came, the nearest first; empty where its weights were drawn."""
        logged = self.last_start.get("came_from")
        if isinstance(logged, list) and logged:
            return [name for name in logged if isinstance(name, str)]
        begun_from = None if self.config is None else self.config.run.init_from
        return [] if begun_from is None else [begun_from]

    @property
    def last_step(self) -> int:
        """The last step that was logged."""
        return self.metrics[-1]["step"] if self.metrics else 0

    @property
    def ended(self) -> bool:
        """Whether its last start came to an end, rather than to a failure or a kill."""
        last = [event["event"] for event in self.events if event["event"] in ("start", "end")][-1:]
        return last == ["end"] or (not self.events and bool(self.summary))

    @property
    def complete(self) -> bool:
        """Whether it ended at its last step."""
        return self.ended and self.config is not None and self.last_step >= self.config.run.steps

    @property
    def baseline(self) -> float | None:
        """Validation loss of the simple model of the same data."""
        known = number(self.summary, "baseline_loss")
        return number(self.last_start, "baseline_loss") if known is None else known


def number(values: Mapping[str, object], key: str) -> float | None:
    """A finite number, or None where there is none."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    if abs(value) < LEAST_NUMBER:
        return 0.0
    return value if math.isfinite(value) and abs(value) <= LARGEST_NUMBER else None


def moment(event: Mapping[str, object]) -> datetime | None:
    """Time of an event, in UTC."""
    try:
        time = datetime.fromisoformat(str(event["time"]))
        return time.astimezone(UTC) if time.tzinfo is not None else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def read_runs(folders: list[Path]) -> list[RunRecord]:
    """The runs of `folders`, by their folders' names, or by their paths where two have one name.

    Raises:
        UserError: a folder is not there or is not a run, or a run is given twice.
    """
    for index, folder in enumerate(folders):
        _check_is_run(folder)
        if any(folder.resolve() == other.resolve() for other in folders[:index]):
            raise UserError(f"{named(folder)}: given twice; expected different runs")
    names = [folder.resolve().name for folder in folders]
    by_path = len(set(names)) < len(names)
    return [_read(folder, str(folder) if by_path else name) for folder, name in zip(folders, names, strict=True)]


def _check_is_run(folder: Path) -> None:
    try:
        if not folder.exists():
            near = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()] if folder.parent.is_dir() else []
            raise UserError(f"{named(folder)}: there is no such folder{did_you_mean(folder.name, near)}")
        if not folder.is_dir():
            raise UserError(f"{named(folder)}: a file, expected the folder of a run")
        if any((folder / name).is_file() for name in (RUN_CONFIG, METRICS)):
            return
        runs = sorted(entry.parent.name for entry in folder.glob(f"*/{RUN_CONFIG}"))
    except UserError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise UserError(f"{named(folder)}: cannot be read ({_reason(error)})") from None
    inside = f"; it holds the runs {', '.join(runs[:5])}{' ...' * (len(runs) > 5)}" if runs else ""
    raise UserError(f"{named(folder)}: no run of jaxpar, because it has neither {RUN_CONFIG} nor {METRICS}{inside}")


def _read(folder: Path, label: str) -> RunRecord:
    notes: list[str] = []
    record = RunRecord(
        label=label,
        folder=folder,
        config=_config(folder / RUN_CONFIG, notes),
        metrics=_steps(_lines(folder / METRICS, "no step was logged", notes)),
        summary=_object(folder / SUMMARY, notes),
        plan=_plan(folder / PLAN, notes),
        environment=_object(folder / ENVIRONMENT, notes),
        events=[
            event
            for event in _lines(folder / EVENTS, "messages and saves are not known", notes)
            if isinstance(event.get("event"), str)
        ],
        evaluations=_lines(folder / EVALUATIONS_FILE, None, notes),
        notes=notes,
    )
    if not (folder / PLAN).is_file():
        notes.append(f"{PLAN} is missing: the run never started, or the file was removed.")
    return record


def _config(file: Path, notes: list[str]) -> Config | None:
    if not file.is_file():
        notes.append(f"{file.name} is missing.")
        return None
    try:
        return load_config(file)
    except UserError as error:
        notes.append(f"{file.name} cannot be used: {error}")
    return None


def _object(file: Path, notes: list[str]) -> dict[str, object]:
    """The object in `file`; empty where there is no file or it is damaged."""
    content = _content(file, notes)
    if content is None:
        return {}
    value = _json(content)
    if isinstance(value, dict):
        return value
    notes.append(f"{file.name} is damaged: it is not a JSON object.")
    return {}


def _plan(file: Path, notes: list[str]) -> dict[str, object]:
    """The plan in `file`."""
    values = _object(file, notes)
    if not values:
        return {}
    try:
        check_plan_version(values.get("version"), file.name)
    except UserError as error:
        notes.append(f"{error}.")
        return {}
    if isinstance(plan := values.get("plan"), dict):
        return plan
    notes.append(f"{file.name} is damaged: it has no plan.")
    return {}


def _lines(file: Path, otherwise: str | None, notes: list[str]) -> list[dict[str, object]]:
    """The objects in the lines of `file`. A last line without an end is being written, or a kill left it so.

    `otherwise` states what is not known without the file; None where it need not be there.
    """
    content = _content(file, notes)
    if content is None:
        if otherwise is not None and not file.exists():
            notes.append(f"{file.name} is missing: {otherwise}.")
        return []
    parsed = [(line_number, _json(line)) for line_number, line in enumerate(content.split(b"\n")[:-1], start=1)]
    damaged = [line_number for line_number, value in parsed if not isinstance(value, dict)]
    if damaged:
        others = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        notes.append(f"{file.name} is damaged: line {damaged[0]}{others} cannot be read and is left out.")
    return [value for _, value in parsed if isinstance(value, dict)]


def _content(file: Path, notes: list[str]) -> bytes | None:
    if not file.is_file():  # neither a folder nor a pipe, which would be waited for
        if file.exists():
            notes.append(f"{file.name} is not a file.")
        return None
    try:
        return read_file(file, LONGEST)
    except UserError:
        notes.append(f"{file.name} has more than {LONGEST} bytes and is left out.")
    except OSError as error:
        notes.append(f"{file.name} cannot be read ({_reason(error)}).")
    return None


def _json(text: bytes) -> object:
    """The value, or None where the text is not JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if _is_shallow(value, DEEPEST) else None


def _is_shallow(value: object, levels: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return not isinstance(value, list) or (levels > 0 and all(_is_shallow(inner, levels - 1) for inner in value))


def _steps(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last line of each step, in order."""
    by_step = {
        line["step"]: line for line in lines if type(line.get("step")) is int and 0 <= line["step"] <= LARGEST_STEP
    }
    return [by_step[step] for step in sorted(by_step)]


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
