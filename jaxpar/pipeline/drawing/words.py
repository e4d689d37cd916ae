"""Schedules and their times in words."""

from __future__ import annotations

from jaxpar.pages.units import plural
from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.table import Schedule
from jaxpar.pipeline.timing.per_chunk import Number


def title(schedule: Schedule) -> str:
    """`zb-v: 4 ranks, 2 chunks each, 8 microbatches`."""
    chunks = f", {schedule.virtual_stages} chunks each" if schedule.virtual_stages > 1 else ""
    return f"{schedule.name}: {plural(schedule.ranks, 'rank')}{chunks}, {plural(schedule.microbatches, 'microbatch')}"


def kind_name(kind: Kind, schedule: Schedule) -> str:
    """The names of F, B and W in `schedule`."""
    backward = "input gradient" if schedule.splits_backward else "backward"
    return {Kind.FORWARD: "forward", Kind.BACKWARD: backward, Kind.WEIGHT: "weight gradient"}[kind]


def number(value: Number, digits: int = 4) -> str:
    """Format a number with at most `digits` decimals, without trailing zeros: `28.5`, `33`, `0.0125`."""
    text = f"{float(value):.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
