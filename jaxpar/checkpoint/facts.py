"""The facts of a checkpoint: a JSON object beside its arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxpar.checkpoint import manifest
from jaxpar.checkpoint.errors import CheckpointError, Damage
from jaxpar.config.errors import UserError
from jaxpar.config.reading.sections import config_from_dict
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.schema import Config
from jaxpar.config.spelling import named

FACTS = "facts.json"
CAME_FROM = "came_from"
"""Fact of a checkpoint: the models from which its run came, the nearest first; absent where weights were drawn."""
CARRIED = "carried"
"""Fact of a checkpoint: a description of each carried state in it, by name (`jaxpar.runtime.carried`)."""
SKIPPED_IN_ROW = "skipped_in_row"
"""Fact of a checkpoint: how many of the last steps before it were skipped, their updates not applied. A checkpoint
with any is not healthy."""

MONITOR = "anomaly_monitor"
"""Fact of a checkpoint: what the anomaly monitor knows of the losses so far, and its rollbacks."""


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """The facts in a checkpoint's folder. Raises `CheckpointError` when they are damaged."""
    try:
        manifest.verify(checkpoint, only=[FACTS])
    except Damage as damage:
        raise CheckpointError(f"checkpoint {checkpoint} cannot be used, because {damage}") from damage
    try:
        facts = json.loads(read_file(checkpoint / FACTS))
    except (ValueError, RecursionError) as error:  # A UserError is a ValueError.
        raise CheckpointError(f"checkpoint {checkpoint} cannot be used, because its {FACTS} is no JSON") from error
    if not isinstance(facts, dict):
        raise CheckpointError(f"checkpoint {checkpoint} cannot be used, because its {FACTS} is no JSON object")
    return facts


def saved_config(facts: dict[str, Any], checkpoint: Path) -> Config:
    """The configuration in the facts of a checkpoint. Raises `UserError` where a key or a value is not of today's."""
    try:
        return config_from_dict(facts["config"])
    except UserError as error:
        raise UserError(f"{named(checkpoint)}: {error}") from None


def skipped_in_row(facts: dict[str, Any]) -> int:
    """How many of the last steps before a checkpoint with these facts were skipped; 0 for a healthy one."""
    return facts.get(SKIPPED_IN_ROW, 0)
