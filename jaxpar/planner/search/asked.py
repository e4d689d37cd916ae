"""Parts of a layout that a user fixes (`--fix name=value`), mechanisms that are left out (`--avoid name`), and those
that no measured run has used."""

from __future__ import annotations

from collections.abc import Sequence

from jaxpar.config import UserError
from jaxpar.config.axes import AXES
from jaxpar.config.spelling import did_you_mean, join_or, quoted
from jaxpar.cost.layout import Layout
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules import SCHEDULES, schedule_name

FIXABLE = (
    *AXES, "microbatch", "schedule", "virtual_stages", "pipe_ends", "zero", "context_strategy", "remat", "offload"
)  # fmt: skip
"""Numbers that a user can fix."""

LEFT_EQUAL = (
    "stages are as equal as the layers allow, since on GPUs of one kind all wait for the longest, and on several kinds "
    "lengths follow the speed of each; parallel.stage_layers sets them for a run"
)
"""The reason why lengths of stages are not searched."""

STRATEGIES = ("allgather", "ring", "ulysses", "usp")
ENDS = ("last", "shared")
NAMED = {
    "context_strategy": STRATEGIES, "offload": ("none", "activations", "optimizer", "all"), "pipe_ends": ENDS
}  # fmt: skip
"""Choices that a user can fix to a name, and the names."""


def parse_fixed(given: list[str]) -> dict[str, str]:
    """`name=value` by name. Raises `UserError` for a name that is not of the space, or a value that cannot be."""
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or name not in FIXABLE:
            if equals and name == "stage_layers":
                raise UserError(f"--fix {quoted(text)}: 'stage_layers' is not searched: {LEFT_EQUAL}")
            near = did_you_mean(name, FIXABLE) or f"; there are {', '.join(FIXABLE)}"
            raise UserError(f"--fix {quoted(text)}: expected name=value, and {quoted(name)} is not searched{near}")
        values[name] = _checked(name, value)
    return values


def _checked(name: str, value: str) -> str:
    if name == "schedule":
        try:
            return schedule_name(value)
        except ScheduleError as error:
            raise UserError(f"--fix schedule: {error}") from None
    known = NAMED.get(name)
    if known is not None:
        if value not in known:
            raise UserError(f"--fix {name}: expected {join_or(known)}, got {quoted(value)}{did_you_mean(value, known)}")
        return value
    if name == "remat":
        return value
    least = 0 if name == "zero" else 1
    if not value.isdigit() or int(value) < least or (name == "zero" and int(value) > 3):
        raise UserError(
            f"--fix {name}: expected a number{', 0 to 3' if name == 'zero' else ' above 0'}, got {quoted(value)}"
        )
    return value


OFFLOAD, ACTIVATIONS, OPTIMIZER = "offload", "activation_offload", "optimizer_offload"
SHARED_EMBED_AND_HEAD = "shared_ends"
"""Embedding and head that all pipeline ranks share."""
EXPERT = "expert"
"""Experts that are split over ranks."""
UNMEASURED = "unmeasured"
"""All of `NEVER_MEASURED`."""

MEASURED_SCHEDULES = ("1f1b", "interleaved")
PIPELINES = tuple(name for name, family in SCHEDULES.items() if not family.one_rank)
NEVER_MEASURED = frozenset(
    {name for name in PIPELINES if name not in MEASURED_SCHEDULES}
    | {"ring", "ulysses", "usp", OPTIMIZER, SHARED_EMBED_AND_HEAD}
)
"""Mechanisms of which no run is in the data that the time model was fitted to or tested by
(`benchmarks/validation/data`): their times follow from their messages, copies and tables alone."""

AVOIDABLE = (
    OFFLOAD,
    ACTIVATIONS,
    OPTIMIZER,
    EXPERT,
    SHARED_EMBED_AND_HEAD,
    UNMEASURED,
    "ring",
    "ulysses",
    "usp",
    *PIPELINES,
)


def parse_avoided(given: Sequence[str]) -> frozenset[str]:
    """Names of mechanisms as single ones. Raises `UserError` for one that is not searched."""
    names: set[str] = set()
    for text in given:
        for name in (part.strip() for part in text.split(",")):
            if name not in AVOIDABLE:
                near = did_you_mean(name, AVOIDABLE) or f"; expected {join_or(AVOIDABLE)}"
                raise UserError(f"--avoid {quoted(name)}: no such mechanism is searched{near}")
            several = {OFFLOAD: {ACTIVATIONS, OPTIMIZER}, UNMEASURED: NEVER_MEASURED}
            names |= several.get(name, {name})
    return frozenset(names)


def never_measured(layout: Layout) -> list[str]:
    """The mechanisms of a layout that no measured run has used."""
    used = [
        *([layout.schedule] if layout.pipe > 1 else []),
        *([layout.context_strategy] if layout.context > 1 else []),
        *([OPTIMIZER] if layout.optimizer_offload else []),
        *([SHARED_EMBED_AND_HEAD] if layout.shared_embed_and_head else []),
    ]
    return [name for name in used if name in NEVER_MEASURED]
