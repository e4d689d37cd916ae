"""The clock: when each part of a trace runs, and which messages compute hides.

The parts run in their order. Compute of t seconds hides t seconds of the messages under way, on each channel the oldest
unfinished one first: messages of a channel run one after another, and those of other channels beside them. At its
`Done` the rest of a message is exposed, and with it what its channel has to finish before it, while messages of other
channels go on. A synchronous message is exposed from start to end. For each second of a message between devices that
it hides, compute takes `slowdown` seconds longer, because NCCL's kernels run on some of the multiprocessors
(`cost.messages.overlapped` has the same rule).

A trace that repeats between a message and its `Done` is run first: its inner messages use the compute in it, and only
the rest of that compute hides the outer message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxpar.trace.parts import WIRE, Done, Message, Op, Repeat, Trace


@dataclass(frozen=True)
class Span:
    """A part of a trace over time, in seconds from the start of the trace."""

    name: str
    kind: str
    """`compute`, `message`, or `wait` for the message of this name."""
    start: float
    end: float


@dataclass(frozen=True)
class Timed:
    """A message with the compute beside it; seconds are those of one execution."""

    seconds: float
    exposed: float
    """Part of `seconds` beside which nothing is computed."""
    slowed: float
    """Seconds that the compute beside it takes longer."""
    beside: tuple[tuple[str, float], ...] = field(repr=False)
    """Compute between its start and its `Done`, with seconds, repetitions included."""

    @property
    def enclosed(self) -> float:
        """Seconds of the compute between its start and its `Done`."""
        return sum(seconds for _, seconds in self.beside)


@dataclass
class Run:
    """One execution of a trace."""

    seconds: float = 0.0
    """All of it: compute, what compute loses to messages, and waiting."""
    compute: float = 0.0
    free: dict[str, float] = field(default_factory=dict)
    """Seconds of compute, by channel, that hide no message of the trace."""
    spans: list[Span] = field(default_factory=list)


@dataclass
class _Flight:
    """A message under way."""

    message: Message
    left: float
    start: float
    end: float
    exposed: float = 0.0
    slowed: float = 0.0
    beside: list[tuple[str, float]] = field(default_factory=list)

    def advance(self, seconds: float, now: float) -> float:
        """Let it progress for up to `seconds` from `now`; returns the seconds that it used."""
        used = min(self.left, seconds)
        if used:
            self.start = now if self.left == self.message.seconds else self.start
            self.left, self.end = self.left - used, now + used
        return used


class Clock:
    """Runs traces; a trace takes the same time whenever it runs.

    Attributes:
        messages: the messages of the trace and of those that it repeats, by name.
        step: the run of the trace itself.
    """

    def __init__(self, trace: Trace, slowdown: float):
        """`slowdown`: seconds that compute loses for each second of a message between devices beside it."""
        self.messages: dict[str, Timed] = {}
        self._slowdown, self._channels = slowdown, _channels(trace)
        self._runs: dict[Trace, Run] = {}
        self.step = self.run(trace)

    def run(self, trace: Trace) -> Run:
        """One execution of the trace, or of one that it repeats."""
        if trace not in self._runs:
            self._runs[trace] = self._walk(trace)
        return self._runs[trace]

    def _walk(self, trace: Trace) -> Run:
        run, flights = Run(free=dict.fromkeys(self._channels, 0.0)), dict[str, _Flight]()
        for part in trace.parts:
            match part:
                case Op(name, seconds):
                    self._compute(run, flights, name, Run(seconds, seconds, dict.fromkeys(self._channels, seconds)))
                case Repeat(name, inner, times):
                    once = self.run(inner)
                    free = {channel: seconds * times for channel, seconds in once.free.items()}
                    self._compute(run, flights, name, Run(once.seconds * times, once.compute * times, free))
                case Message(name, seconds):
                    flights[name] = _Flight(part, seconds, run.seconds, run.seconds)
                    if part.synchronous:
                        self._wait(run, flights, flights[name])
                        self._land(run, flights, name)
                case Done(name):
                    for flight in list(flights.values()):
                        if flight.message.channel == flights[name].message.channel:
                            self._wait(run, flights, flight)
                        if flight.message.name == name:
                            break
                    self._land(run, flights, name)
        return run

    def _compute(self, run: Run, flights: Mapping[str, _Flight], name: str, inside: Run) -> None:
        """Run compute, which hides messages under way."""
        slowed = 0.0
        for channel in self._channels:
            free, now = inside.free[channel], run.seconds
            for flight in flights.values():
                if flight.message.channel == channel:
                    used = flight.advance(free, now)
                    free, now = free - used, now + used
                    if channel.startswith(WIRE):
                        flight.slowed += self._slowdown * used
                        slowed += self._slowdown * used
            run.free[channel] += free
        if inside.compute:
            for flight in flights.values():
                flight.beside.append((name, inside.compute))
        if inside.seconds:
            run.spans.append(Span(name, "compute", run.seconds, run.seconds + inside.seconds + slowed))
        run.compute += inside.compute
        run.seconds += inside.seconds + slowed

    def _wait(self, run: Run, flights: Mapping[str, _Flight], flight: _Flight) -> None:
        """Finish a message while nothing is computed; messages of other channels go on."""
        if not flight.left:
            return
        waited = flight.advance(flight.left, run.seconds)
        flight.exposed += waited
        for channel in self._channels:
            free, now = waited, run.seconds
            for other in flights.values():
                if other.message.channel == channel != flight.message.channel:
                    used = other.advance(free, now)
                    free, now = free - used, now + used
        run.spans.append(Span(flight.message.name, "wait", run.seconds, run.seconds + waited))
        run.seconds += waited

    def _land(self, run: Run, flights: dict[str, _Flight], name: str) -> None:
        flight = flights.pop(name)
        run.spans.append(Span(name, "message", flight.start, flight.end))
        timed = Timed(flight.message.seconds, flight.exposed, flight.slowed, tuple(flight.beside))
        self.messages[name] = timed


def _channels(trace: Trace) -> tuple[str, ...]:
    """All channels of a trace and of those that it repeats."""
    found, pending, seen = dict[str, None](), [trace], {trace}
    while pending:
        for part in pending.pop().parts:
            if isinstance(part, Message):
                found[part.channel] = None
            elif isinstance(part, Repeat) and part.trace not in seen:
                seen.add(part.trace)
                pending.append(part.trace)
    return tuple(found)
