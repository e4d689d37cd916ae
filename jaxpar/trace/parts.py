"""The parts of a trace: compute, messages that start and are waited for, and traces that repeat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

WIRE = "wire"
"""Channel of messages between devices, which take multiprocessors from the compute beside them."""


class Op(NamedTuple):
    """A piece of compute, with its seconds."""

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


class Run:
    """One execution of a trace, or of work that is priced already."""

    __slots__ = "_by_kind", "busy", "compute", "inner", "kinds", "seconds", "spans"

    def __init__(
        self, seconds: float = 0.0, compute: float = 0.0, kinds: dict[str, float] | None = None,
        busy: dict[str, float] | None = None,
    ):  # fmt: skip
        self.seconds, self.compute = seconds, compute
        """All of it: compute, its losses to messages, and waiting; and compute alone."""
        self.kinds: dict[str, float] = {} if kinds is None else kinds
        """The part of `seconds_by_kind` that is in no inner run."""
        self.busy: dict[str, float] = {} if busy is None else busy
        """Seconds of it, by channel, in which a message is under way."""
        self.inner: list[tuple[Run, float]] = []
        """The runs in it that are priced apart, with how often each runs."""
        self.spans: list[Span] = []
        self._by_kind: dict[str, float] | None = None

    def times(self, count: float) -> Run:
        """This run `count` times in a row."""
        run = Run(count * self.seconds, count * self.compute)
        run.inner.append((self, count))
        return run

    @property
    def seconds_by_kind(self) -> dict[str, float]:
        """Its seconds by kind: of compute, and of the messages that are waited for, or that compute takes longer
        beside."""
        if self._by_kind is None:
            total = dict(self.kinds)
            for inside, times in self.inner:
                for kind, seconds in inside.seconds_by_kind.items():
                    total[kind] = total.get(kind, 0.0) + times * seconds
            self._by_kind = total
        return self._by_kind
