"""The clock: when each part of a trace runs, and which messages compute hides.

The parts run in their order. Compute of t seconds hides t seconds of the messages under way, on each channel the oldest
unfinished one first: messages of a channel run one after another, and those of other channels beside them. At its
`Done` the rest of a message is exposed, and with it what its channel has to finish before it, while messages of other
channels go on. A synchronous message is exposed from start to end. For each second of a message between devices that
it hides, compute takes `slowdown` seconds longer, because NCCL's kernels run on some of the multiprocessors.

A trace that repeats between a message and its `Done` is run first: messages in it have their channel, and in the rest
of its time the outer message goes on. `added` is the closed form of one message beside compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jaxpar.trace.parts import WIRE, Message, Op, Part, Repeat, Run, Span, Trace


class Timed(NamedTuple):
    """A message with the compute beside it; seconds are those of one execution."""

    seconds: float
    exposed: float
    """Part of `seconds` beside which nothing is computed."""
    slowed: float
    """Seconds that the compute beside it takes longer."""
    beside: tuple[tuple[str, float], ...]
    """Compute between its start and its `Done`, with seconds, repetitions included."""

    @property
    def enclosed(self) -> float:
        """Seconds of the compute between its start and its `Done`."""
        return sum(seconds for _, seconds in self.beside)


class _Flight:
    """A message under way."""

    __slots__ = "beside", "end", "exposed", "left", "message", "slowed", "start"

    def __init__(self, message: Message, now: float):
        self.message, self.left, self.start, self.end = message, message.seconds, now, now
        self.exposed = self.slowed = 0.0
        self.beside: list[tuple[str, float]] = []

    def advance(self, seconds: float, now: float) -> float:
        """Let it progress for up to `seconds` from `now`; returns the seconds that it used."""
        used = min(self.left, seconds)
        if used > 0:
            self.start = now if self.left == self.message.seconds else self.start
            self.left, self.end = self.left - used, now + used
            return used
        return 0.0


class Clock:
    """Runs traces; a trace takes the same time whenever it runs.

    Attributes:
        messages: the messages of traces that were run, by name, if it records.
    """

    def __init__(self, slowdown: float, *, records: bool = False):
        """
        Args:
            slowdown: seconds that compute loses for each second of a message between devices beside it.
            records: whether runs have spans, and messages are kept.
        """
        self.messages: dict[str, Timed] = {}
        self._slowdown, self._records = slowdown, records
        self._runs: dict[Trace, Run] = {}

    def run(self, trace: Trace | Run) -> Run:
        """One execution of a trace."""
        if isinstance(trace, Run):
            return trace
        if trace not in self._runs:
            self._runs[trace] = self.walk(*trace.parts)
        return self._runs[trace]

    def walk(self, *parts: Part) -> Run:
        """One execution of the parts of a trace."""
        run, flights = Run(), dict[str, _Flight]()
        for part in parts:
            # A search runs this a hundred thousand times, and `match` would take twice as long.
            if isinstance(part, Repeat):
                self._compute(run, flights, part.name, self.run(part.trace), part.times)
            elif isinstance(part, Op):
                self._compute(run, flights, part.name, Run(part.seconds, part.seconds, {part.kind: part.seconds}), 1)
            elif isinstance(part, Message):
                flights[part.name] = flight = _Flight(part, run.seconds)
                if part.synchronous:
                    self._wait(run, flights, flight)
                    self._land(run, flights, part.name)
            else:
                self._finish(run, flights, part.name)
        return run

    def _finish(self, run: Run, flights: dict[str, _Flight], name: str) -> None:
        """Wait for a message, and for those before it on its channel."""
        channel = flights[name].message.channel
        for flight in list(flights.values()):
            if flight.message.channel == channel:
                self._wait(run, flights, flight)
            if flight.message.name == name:
                break
        self._land(run, flights, name)

    def _compute(self, run: Run, flights: Mapping[str, _Flight], name: str, inside: Run, times: float) -> None:
        """Run compute, which hides messages under way."""
        seconds, slowed = times * inside.seconds, 0.0
        run.inner.append((inside, times))
        for channel, busy in inside.busy.items():
            run.busy[channel] = run.busy.get(channel, 0.0) + times * busy
        if flights:
            slowed = self._beside(run, flights, name, inside, times)
        if self._records and seconds:
            run.spans.append(Span(name, "compute", run.seconds, run.seconds + seconds + slowed))
        run.compute += times * inside.compute
        run.seconds += seconds + slowed

    def _beside(self, run: Run, flights: Mapping[str, _Flight], name: str, inside: Run, times: float) -> float:
        """Let messages progress beside compute; returns the seconds that it loses to them."""
        taken, slowed = {channel: times * busy for channel, busy in inside.busy.items()}, 0.0
        for flight in flights.values():
            channel, kind = flight.message.channel, flight.message.kind
            before = taken.get(channel, 0.0)
            if used := flight.advance(times * inside.seconds - before, run.seconds + before):
                taken[channel] = before + used
                run.busy[channel] = run.busy.get(channel, 0.0) + used
                if channel.startswith(WIRE):
                    lost = self._slowdown * used
                    flight.slowed += lost
                    slowed += lost
                    run.kinds[kind] = run.kinds.get(kind, 0.0) + lost
            if inside.compute:
                flight.beside.append((name, times * inside.compute))
        return slowed

    def _wait(self, run: Run, flights: Mapping[str, _Flight], flight: _Flight) -> None:
        """Finish a message while nothing is computed; messages of other channels go on."""
        if not flight.left:
            return
        channel, kind, now = flight.message.channel, flight.message.kind, run.seconds
        waited = flight.advance(flight.left, now)
        flight.exposed += waited
        taken = {channel: waited}
        for other in flights.values():
            if (used_channel := other.message.channel) != channel:
                before = taken.get(used_channel, 0.0)
                taken[used_channel] = before + other.advance(waited - before, now + before)
        for used_channel, used in taken.items():
            run.busy[used_channel] = run.busy.get(used_channel, 0.0) + used
        run.kinds[kind] = run.kinds.get(kind, 0.0) + waited
        if self._records:
            run.spans.append(Span(flight.message.name, "wait", now, now + waited))
        run.seconds += waited

    def _land(self, run: Run, flights: dict[str, _Flight], name: str) -> None:
        flight = flights.pop(name)
        if self._records:
            run.spans.append(Span(name, "message", flight.start, flight.end))
            self.messages[name] = Timed(flight.message.seconds, flight.exposed, flight.slowed, tuple(flight.beside))


def added(message: float, beside: float, slowdown: float) -> float:
    """Seconds that a message adds to a step in which it starts before so many seconds of compute, and is done after:
    what it takes longer, and what compute loses beside it (Galvatron's coefficient, arXiv:2211.13878)."""
    waits = max(0.0, message - beside)
    return waits + slowdown * (message - waits)
