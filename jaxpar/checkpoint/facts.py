"""The facts of a checkpoint: a JSON object beside its arrays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpar.checkpoint import manifest
from jaxpar.checkpoint.errors import CheckpointError, Damage
from jaxpar.config.errors import UserError
from jaxpar.config.reading.sections import config_from_dict
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.reading.typed import checked
from jaxpar.config.schema import Config
from jaxpar.config.spelling import named

FACTS = "facts.json"
CONFIG = "config"
"""Fact of a checkpoint: the configuration of its model or run."""
CAME_FROM = "came_from"
"""Fact of a checkpoint: the models from which its run came, the nearest first; absent where weights were drawn."""
CARRIED = "carried"
"""Fact of a checkpoint: a description of each carried state in it, by name (`jaxpar.runtime.carried`)."""
SKIPPED_IN_ROW = "skipped_in_row"
"""Fact of a checkpoint: how many of the last steps before it were skipped, their updates not applied. A checkpoint
with any is not healthy."""

MONITOR = "anomaly_monitor"
"""Fact of a checkpoint: what the anomaly monitor knows of the losses so far, and its rollbacks."""
CONTENTS = "contents"
"""Fact of a checkpoint: names of facts that are bytes, each in a file of its own; absent where there are none."""
HF_FACTS = "hugging_face"
"""Fact of a checkpoint that was converted: the family, and the dtype of each tensor."""
BASE = "base"
"""Fact of a checkpoint with factors alone: where the model is that they adapt, and the digest of its weights."""
REFERENCE = "reference"
"""Fact of a checkpoint of a run with a reference: where that is, and the digest of its weights."""


@dataclass(frozen=True)
class HuggingFaceFact:
    """The form of `HF_FACTS`."""

    family: str
    dtypes: dict[str, str]


@dataclass(frozen=True)
class SourceFact:
    """The form of `BASE` and `REFERENCE`."""

    path: str
    digest: str


@dataclass(frozen=True)
class MonitorFact:
    """The form of `MONITOR`."""

    losses: tuple[float, ...]
    rollbacks: int


@dataclass(frozen=True)
class PhaseFact:
    """The form of a phase of a mixture."""

    first: int
    weights: dict[str, float]
    used: dict[str, int]


@dataclass(frozen=True)
class StreamFact:
    """The form of `stream`, the positions of text that is read while a run trains."""

    order: int
    files: str
    example: int
    lanes: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class MixtureFact:
    """The form of `mixture`."""

    phases: tuple[PhaseFact, ...]


_RUN_TYPES: dict[str, object] = {
    CONFIG: dict[str, object], "data": str, "shuffle": int | None, "mixture": MixtureFact | None,
    "left_out": tuple[int, ...], "tokens": int, "skipped": int, "empty": int, "loss": float | None,
    "eval_step": int | None, "eval_loss": float | None, SKIPPED_IN_ROW: int, CARRIED: dict[str, str],
}  # fmt: skip
"""The facts that every checkpoint of a run has, with their types."""
_TYPES: dict[str, object] = _RUN_TYPES | {
    CAME_FROM: tuple[str, ...], HF_FACTS: HuggingFaceFact, BASE: SourceFact, REFERENCE: SourceFact,
    MONITOR: MonitorFact, CONTENTS: tuple[str, ...], "stream": StreamFact,
}  # fmt: skip
"""The type of each fact that is read again."""


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """The facts in a checkpoint's folder. Raises `CheckpointError` when they are damaged, or one has another type."""
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
    try:
        for name, kind in _TYPES.items():
            if name in facts:
                checked(name, facts[name], kind)
    except UserError as error:
        raise CheckpointError(f"checkpoint {checkpoint} cannot be used, because of its {FACTS}: {error}") from error
    return facts


def file_of(name: str) -> str:
    """The file of a fact that is bytes."""
    return f"{name}.bin"


def read_contents(checkpoint: Path, facts: Mapping[str, Any]) -> dict[str, bytes]:
    """The facts of a checkpoint that are bytes. Raises `CheckpointError` when one is damaged."""
    names = facts.get(CONTENTS, ())
    try:
        if names:
            manifest.verify(checkpoint, only=[file_of(name) for name in names])
        return {name: read_file(checkpoint / file_of(name)) for name in names}
    except (Damage, OSError) as damage:
        raise CheckpointError(f"checkpoint {checkpoint} cannot be used, because {damage}") from damage


def saved_config(facts: Mapping[str, Any], checkpoint: Path) -> Config:
    """The configuration in the facts of a checkpoint. Raises `UserError` where a key or a value is not of today's."""
    require(checkpoint, facts, [CONFIG])
    try:
        return config_from_dict(facts[CONFIG])
    except UserError as error:
        raise UserError(f"{named(checkpoint)}: {error}") from None


def require(checkpoint: Path, facts: Mapping[str, object], names: Iterable[str]) -> None:
    """Raise `CheckpointError` if a checkpoint lacks one of these facts."""
    for name in names:
        if name not in facts:
            raise CheckpointError(f"checkpoint {checkpoint} cannot be used, because its {FACTS} has no {name!r}")


def check_run_facts(checkpoint: Path, facts: Mapping[str, object]) -> None:
    """Raise `CheckpointError` if facts lack what the checkpoint of a run has."""
    require(checkpoint, facts, _RUN_TYPES)


def skipped_in_row(facts: Mapping[str, Any]) -> int:
    """The number of skipped steps directly before a checkpoint with these facts; 0 for a healthy one."""
    return facts.get(SKIPPED_IN_ROW, 0)
