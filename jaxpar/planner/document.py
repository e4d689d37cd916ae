"""`plan.json`: a layout with the configuration that has it, where it is for, and what was predicted of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxpar.config import Config, UserError, config_from_dict, config_to_dict
from jaxpar.config.json_text import parse_json
from jaxpar.config.plan import Plan
from jaxpar.config.spelling import did_you_mean, named
from jaxpar.config.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.typed import shown
from jaxpar.planner.found import Planned
from jaxpar.planner.mixed import ranks_of, stages_by_group

NUMBERS = ("step_time_s", "tokens_per_s_per_gpu", "mfu", "peak_bytes")
"""What was predicted, each a number above 0."""
TABLES = ("breakdown", "memory")
"""What was predicted, each numbers by name."""
LARGEST_NUMBER = 1e30
"""Of bytes, seconds or rates; whole numbers of hundreds of digits would not become a float."""
NEEDED = ("config", "plan", "cluster", *NUMBERS, *TABLES)


@dataclass(frozen=True)
class PlanDocument:
    """What `plan.json` holds."""

    config: Config
    plan: Plan
    cluster: str
    """As the user wrote it."""
    predicted: Mapping[str, Any]
    """`step_time_s`, `tokens_per_s_per_gpu`, `mfu`, `peak_bytes`, `host_bytes`, `memory` and `breakdown`."""


def to_dict(planned: Planned, cluster: str) -> dict[str, Any]:
    """For JSON: the plan, what is predicted, and all that a run of it needs."""
    time, memory = planned.found.time, planned.found.memory
    return {
        "plan": asdict(planned.plan),
        "step_time_s": time.seconds,
        "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu,
        "mfu": time.mfu,
        "peak_bytes": memory.device,
        "host_bytes": memory.host,
        "usable_bytes": planned.usable,
        "breakdown": dict(time.breakdown),
        "memory": {name: size for name, size in memory._asdict().items() if name != "host"},
        "node_order": planned.order,
        "stages": [
            {"group": one.group.name, "gpu": one.group.gpu.name, "first": one.first, "layers": one.layers}
            for one in stages_by_group(
                planned.cluster, planned.plan.axes.pipe, ranks_of(planned.found.layout), planned.plan.stage_layers
            )
        ],
        "cluster": cluster,
        "config": config_to_dict(planned.config),
    }


def write_document(path: Path, planned: Planned, cluster: str) -> None:
    """Write `plan.json`. Raises `UserError` where that cannot be."""
    try:
        path.write_text(json.dumps(to_dict(planned, cluster), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{named(path)}: the plan cannot be written ({error.strerror})") from None


def read_document(path: Path) -> PlanDocument:
    """Read `plan.json`; of a list (`--json`) the first.

    Raises:
        UserError: it cannot be read, or is no plan of `python -m jaxpar.plan`.
    """
    try:
        text = read_text_file(path, LONGEST_WRITTEN)
    except FileNotFoundError:
        beside = [entry.name for entry in path.parent.glob("*.json")]
        raise UserError(f"{named(path)}: there is no such file{did_you_mean(path.name, beside)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{named(path)}: cannot be read as text ({error})") from None
    plain = parse_json(text, named(path))
    if isinstance(plain, list) and plain:
        plain = plain[0]
    if not isinstance(plain, dict) or any(key not in plain for key in NEEDED):
        missing = [key for key in NEEDED if not isinstance(plain, dict) or key not in plain]
        raise UserError(
            f"{named(path)}: no plan of python -m jaxpar.plan, because {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; a run's own plan.json has the layout alone"
        )
    _check(path, plain)
    try:
        config, plan = config_from_dict(plain["config"]), Plan.from_json(json.dumps(plain["plan"]))
    except UserError as error:
        raise UserError(f"{named(path)}: {error}") from None
    rest = {key: value for key, value in plain.items() if key not in ("config", "plan", "cluster")}
    return PlanDocument(config, plan, str(plain["cluster"]), rest)


def _check(path: Path, plain: Mapping[str, Any]) -> None:
    """Raise `UserError` where what was predicted is no number."""
    for name in ("config", *TABLES):
        if not isinstance(plain[name], dict):
            raise UserError(f"{named(path)}: {name}: expected names and values, got {shown(plain[name])}")
    for name in NUMBERS:
        if not is_number(plain[name]) or plain[name] <= 0:
            raise UserError(f"{named(path)}: {name}: expected a number above 0, got {shown(plain[name])}")
    for stage in plain.get("stages") or []:
        if not isinstance(stage, dict) or not {"group", "gpu", "first", "layers"} <= set(stage):
            raise UserError(f"{named(path)}: stages: expected group, gpu, first and layers of each, got {shown(stage)}")
    for table in TABLES:
        for name, value in plain[table].items():
            if not is_number(value):
                raise UserError(f"{named(path)}: {table}.{name}: expected a number, got {shown(value)}")


def is_number(value: Any) -> bool:
    """Whether JSON has a finite number there, of a size that arithmetic takes."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER
