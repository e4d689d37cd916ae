"""The parts of a trace: compute, messages that start and are waited for, and traces that repeat."""

from __future__ import annotations

from dataclasses import dataclass, field

WIRE = "wire"
"""Channel of messages between devices, which take multiprocessors from the compute beside them."""


@dataclass(frozen=True)
class Op:
    """Compute."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Message:
    """The start of a message. The compute between it and its `Done` can hide it."""

    name: str
    seconds: float
    channel: str
    """Link that it shares with others, of which one is under way at a time. Names of links between devices begin with
    `WIRE`."""
    synchronous: bool = False
    """Whether nothing runs beside it; there is no `Done` then."""


@dataclass(frozen=True)
class Done:
    """Waits for the message of this name."""

    name: str


@dataclass(frozen=True)
class Repeat:
    """A trace that runs several times in a row, such as the body of a loop."""

    name: str
    trace: Trace
    times: float


@dataclass(frozen=True, eq=False)
class Trace:
    """The work and the messages of one device, in order."""

    name: str
    parts: tuple[Op | Message | Done | Repeat, ...] = field(repr=False)
