"""Actions: one microbatch through one chunk of layers, in one direction, with the text form `2F0`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from jaxpar.pipeline.errors import ScheduleError

PATTERN = re.compile(r"(\d{1,9})([FBW])(\d{1,9})")


class Kind(Enum):
    """The kind of an action on a microbatch and a chunk of layers."""

    FORWARD = "F"
    BACKWARD = "B"
    """The whole backward; in a schedule that splits the backward, the gradient of the input alone."""
    WEIGHT = "W"
    """The gradient of the weights, in a schedule that splits the backward."""

    __hash__ = object.__hash__
    """Hash by identity: Enum hashes the name, which would take half of the time to make a long schedule."""


@dataclass(frozen=True)
class Action:
    """One microbatch through one chunk of layers, in one direction.

    `chunk` is the index in the order of the model, over all ranks: chunk 0 has the first layers, whatever its rank. The
    text form is that of torch.distributed.pipelining: `2F0` is the forward of microbatch 0 through chunk 2.
    """

    kind: Kind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.chunk}{self.kind.value}{self.microbatch}"


def parse_action(text: str) -> Action:
    """`2F0` as an action; raises ScheduleError for anything else."""
    match = PATTERN.fullmatch(text.strip().upper())
    if match is None:
        raise ScheduleError(f"{text!r} is not an action: expected chunk, F, B or W, and microbatch, as in 2F0")
    chunk, kind, microbatch = match.groups()
    return Action(Kind(kind), int(microbatch), int(chunk))
