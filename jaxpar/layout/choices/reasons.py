"""The choices of a plan in words, for tables."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from jaxpar.config.kinds import ALL
from jaxpar.config.plan import Choice
from jaxpar.config.reading.typed import spell
from pallas_kernels.choice import NEEDS_GPU


def choice_rows(record: Any, name: str = "") -> list[tuple[str, str, str]]:
    """(name, value, reason) of each choice in a plan, or in a part of one called `name`, that has a reason."""
    if isinstance(record, Choice):
        return [(name, spell(record.name), choice_reasons(record))] if record.reason else []
    if is_dataclass(record):
        record = {field.name.replace("_", " "): getattr(record, field.name) for field in fields(record)}
    if not isinstance(record, dict):
        return []
    return [
        row
        for key, part in record.items()
        for row in choice_rows(part, name if key == ALL else f"{name} {key}".strip())
    ]


def choice_reasons(choice: Choice[Any]) -> str:
    """The reason for a choice, and against each of the others; names with one reason share a clause.

    On a CPU nothing is said about kernels for GPUs.
    """
    names: dict[str, list[str]] = {}
    for name, against in choice.rejected.items():
        if not against.startswith(NEEDS_GPU):
            names.setdefault(against, []).append(name)
    clauses = (
        f"not {', '.join(which)}: {against if len(which) == 1 else _plural(against)}"
        for against, which in names.items()
    )
    return "; ".join([choice.reason, *clauses])


def _plural(against: str) -> str:
    """A reason that begins with "it", of several."""
    return f"each {against.removeprefix('it ')}" if against.startswith("it ") else against
