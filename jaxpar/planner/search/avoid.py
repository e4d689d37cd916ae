"""Mechanisms that a search may leave out, and those that no measured run has used."""

from __future__ import annotations

from collections.abc import Sequence

from jaxpar.config import UserError
from jaxpar.config.spelling import did_you_mean, one_of, quoted
from jaxpar.cost.layout import Layout
from jaxpar.pipeline.schedules import SCHEDULES

OFFLOAD, ACTIVATIONS, OPTIMIZER = "offload", "activation_offload", "optimizer_offload"
SHARED_ENDS = "shared_ends"
"""Embedding and head that all pipeline ranks share."""
EXPERT = "expert"
"""Experts that are split over ranks."""
UNMEASURED = "unmeasured"
"""All of `NEVER_MEASURED`."""

MEASURED_SCHEDULES = ("1f1b", "interleaved")
PIPELINES = tuple(name for name, family in SCHEDULES.items() if not family.one_rank)
NEVER_MEASURED = frozenset(
    {name for name in PIPELINES if name not in MEASURED_SCHEDULES}
    | {"ring", "ulysses", "usp", OPTIMIZER, EXPERT, SHARED_ENDS}
)
"""Mechanisms of which no run is in the data that the time model was fitted to or tested by
(`benchmarks/validation/data`): their times follow from their messages, copies and tables alone."""

AVOIDABLE = (OFFLOAD, ACTIVATIONS, OPTIMIZER, EXPERT, SHARED_ENDS, UNMEASURED, "ring", "ulysses", "usp", *PIPELINES)


def parse_avoided(given: Sequence[str]) -> frozenset[str]:
    """Names of mechanisms as single ones. Raises `UserError` for one that is not searched."""
    found: set[str] = set()
    for text in given:
        for name in (part.strip() for part in text.split(",")):
            if name not in AVOIDABLE:
                near = did_you_mean(name, AVOIDABLE) or f"; expected {one_of(AVOIDABLE)}"
                raise UserError(f"--avoid {quoted(name)}: no such mechanism is searched{near}")
            several = {OFFLOAD: {ACTIVATIONS, OPTIMIZER}, UNMEASURED: NEVER_MEASURED}
            found |= several.get(name, {name})
    return frozenset(found)


def never_measured(layout: Layout) -> list[str]:
    """The mechanisms of a layout that no measured run has used."""
    used = [
        *([layout.schedule] if layout.pipe > 1 else []),
        *([layout.context_strategy] if layout.context > 1 else []),
        *([OPTIMIZER] if layout.optimizer_offload else []),
        *([EXPERT] if layout.expert > 1 else []),
        *([SHARED_ENDS] if layout.shared_ends else []),
    ]
    return [name for name in used if name in NEVER_MEASURED]
