"""`plan.json`: a plan with its configuration, the cluster that it is for, and the predictions for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jaxpar.config import Config, UserError, config_from_dict, config_to_dict
from jaxpar.config.bounds import LAYERS, spell_limit
from jaxpar.config.checks.values import check_values
from jaxpar.config.kinds import check_kinds
from jaxpar.config.plan import PLAN_VERSION, Plan, check_plan_version
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.reading.typed import checked, field_types, record_from_plain, shown
from jaxpar.config.spelling import did_you_mean, named
from jaxpar.config.strict_json import json_text


@dataclass(frozen=True)
class Stage:
    """Hosts of one kind and the stages on them, where a cluster has several kinds."""

    group: str
    gpu: str
    first: int
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.layers or not all(0 <= number <= LAYERS for number in (self.first, *self.layers)):
            numbers = f"from 0 to {spell_limit(LAYERS)}"
            raise UserError(f"stages: expected a first stage and the layers of each, {numbers}, got {shown(self)}")


KEYS = ("version", "cluster", "predicted", "plan", "config")
"""The keys of the file, in this order."""
NUMBERS = ("step_time_s", "tokens_per_s_per_gpu", "mfu", "peak_bytes")
"""Predictions that are a number above 0."""
TABLES = ("breakdown", "memory")
"""Predictions that are numbers by name."""
MORE: dict[str, Any] = {
    "interval_s": tuple[float, ...] | None, "host_bytes": float, "usable_bytes": float, "hosts": int,
    "node_order": tuple[int, ...] | None, "stages": tuple[Stage, ...] | None,
}  # fmt: skip
"""Further predictions that a file may have, whose numbers are at least 0, with their types."""
LARGEST_NUMBER = 1e30
"""Limit for bytes, seconds and rates; whole numbers of hundreds of digits would not become a float."""


@dataclass(frozen=True)
class PlanFile:
    """The contents of `plan.json`."""

    config: Config
    plan: Plan
    cluster: str | None = None
    """The cluster that it is for, as the user wrote it; None for a run on this machine's devices."""
    predicted: Mapping[str, Any] = field(default_factory=dict)
    """Nothing, or `NUMBERS` and `TABLES`, and `interval_s`, `host_bytes`, `usable_bytes`, `node_order` and
    `stages`."""

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values."""
        return {
            "version": PLAN_VERSION,
            "cluster": self.cluster,
            "predicted": dict(self.predicted),
            "plan": asdict(self.plan),
            "config": config_to_dict(self.config),
        }

    def to_json(self) -> str:
        """The text of the file."""
        return json_text(self.to_dict(), indent=2) + "\n"


def write(path: Path, file: PlanFile) -> None:
    """Write `plan.json`. Raises `UserError` if it cannot be written."""
    try:
        path.write_text(file.to_json(), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{named(path)}: the plan cannot be written ({error.strerror})") from None


def read(path: Path) -> PlanFile:
    """Read `plan.json` of the planner or of a run; of a list (`--json`) the first.

    Raises:
        UserError: it cannot be read, is not a plan, or is of another version.
    """
    label = named(path)
    try:
        text = read_text_file(path, LONGEST_WRITTEN)
    except FileNotFoundError:
        beside = [entry.name for entry in path.parent.glob("*.json")]
        raise UserError(f"{label}: there is no such file{did_you_mean(path.name, beside)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{label}: cannot be read as text ({error})") from None
    plain = parse_json(text, label, unique=True)
    if isinstance(plain, list) and plain:
        plain = plain[0]
    if not isinstance(plain, dict):
        raise UserError(f"{label}: no plan.json; expected {', '.join(KEYS)}, got {shown(plain)}")
    if "version" in plain:
        check_plan_version(plain["version"], label)
    _check(label, plain)
    try:
        config, plan = config_from_dict(plain["config"]), record_from_plain(Plan, plain["plan"], "plan")
        check_values(config)
        check_kinds(config.model)
    except UserError as error:
        raise UserError(f"{label}: {error}") from None
    return PlanFile(config, plan, plain["cluster"], plain["predicted"])


def _check(label: str, plain: Mapping[str, Any]) -> None:
    """Raise `UserError` if something is missing or unknown, or a prediction is not a number."""
    if missing := [key for key in KEYS if key not in plain]:
        are = "is" if len(missing) == 1 else "are"
        raise UserError(f"{label}: no plan.json, because {' and '.join(missing)} {are} missing")
    if unknown := [key for key in plain if key not in KEYS]:
        raise UserError(f"{label}: unknown key {shown(unknown[0])}{did_you_mean(unknown[0], KEYS)}")
    if not isinstance(plain["cluster"], str | None):
        raise UserError(f"{label}: cluster: expected text or null, got {shown(plain['cluster'])}")
    for name in ("config", "plan", "predicted"):
        if not isinstance(plain[name], dict):
            raise UserError(f"{label}: {name}: expected names and values, got {shown(plain[name])}")
    if missing := [key for key in field_types(Plan) if key not in plain["plan"]]:
        raise UserError(f"{label}: plan: the key {missing[0]} is missing")
    if plain["predicted"]:
        _check_predicted(label, plain["predicted"])


def _check_predicted(label: str, predicted: Mapping[str, Any]) -> None:
    for name in NUMBERS:
        if not is_number(predicted.get(name)) or predicted[name] <= 0:
            raise UserError(f"{label}: {name}: expected a number above 0, got {shown(predicted.get(name))}")
    for table in TABLES:
        _check_table(f"{label}: {table}", predicted.get(table))
    try:
        values = {name: checked(name, predicted[name], kind) for name, kind in MORE.items() if name in predicted}
    except UserError as error:
        raise UserError(f"{label}: {error}") from None
    stages = values.pop("stages", None)
    if stages and stages[0].first != 0:
        raise UserError(f"{label}: stages: expected the first group to have stage 0, got {stages[0].first}")
    for name, value in values.items():
        numbers = value if isinstance(value, tuple) else () if value is None else (value,)
        if not all(0 <= number <= LARGEST_NUMBER for number in numbers):
            raise UserError(f"{label}: {name}: expected numbers of at least 0, got {shown(predicted[name])}")


def _check_table(label: str, table: object) -> None:
    if not isinstance(table, dict):
        raise UserError(f"{label}: expected names and values, got {shown(table)}")
    for name, value in table.items():
        if not is_number(value):
            raise UserError(f"{label}.{name}: expected a number, got {shown(value)}")


def is_number(value: Any) -> bool:
    """Whether it is a finite JSON number of at most `LARGEST_NUMBER`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER
