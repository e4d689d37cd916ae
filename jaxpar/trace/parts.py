"""The parts of a trace: compute, messages that start and are waited for, and traces that repeat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

WIRE = "wire"
"""Channel of messages between devices, which take multiprocessors from the compute beside them."""


class Op(NamedTuple):
    """Compute."""

    name: str
    seconds: float
    kind: str = "compute"


class Message(NamedTuple):
    """The start of a message. The compute between it and its `Done` can hide it."""

    name: str
    seconds: float
    channel: str = WIRE
    """Link that it shares with others, of which one is under way at a time. Names of links between devices begin with
    `WIRE`."""
    synchronous: bool = False
    """Whether nothing runs beside it; there is no `Done` then."""
    kind: str = "message"


class Done(NamedTuple):
    """Waits for the message of this name."""

    name: str


class Repeat(NamedTuple):
    """A trace that runs several times in a row, such as the body of a loop; or a share of it."""

    name: str
    trace: Trace | Run
    times: float = 1.0


type Part = Op | Message | Done | Repeat


@dataclass(frozen=True, eq=False)
class Trace:
    """The work and the messages of one device, in order."""

    name: str
    parts: tuple[Part, ...] = field(repr=False)


class Span(NamedTuple):
    """A part of a trace over time, in seconds from the start of the trace."""

    name: str
    kind: str
    """`compute`, `message`, or `wait` for the message of this name."""
    start: float
    end: float


@dataclass(eq=False)
class Run:
    """One execution of a trace, or of work that is priced already."""

    seconds: float = 0.0
    """All of it: compute, what compute loses to messages, and waiting."""
    compute: float = 0.0
    by_kind: dict[str, float] = field(default_factory=dict)
    """The same by kind: of compute, and of the messages that are waited for, or that compute takes longer beside."""
    busy: dict[str, float] = field(default_factory=dict)
    """Seconds of it, by channel, in which a message is under way."""
    spans: list[Span] = field(default_factory=list)

    def times(self, number: float) -> Run:
        """So many times the same."""
        scaled = lambda parts: {name: number * seconds for name, seconds in parts.items()}
        return Run(number * self.seconds, number * self.compute, scaled(self.by_kind), scaled(self.busy))
