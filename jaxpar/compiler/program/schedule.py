"""Overlap read from the schedule: what of each transfer's time runs beside compute, and what is exposed.

The rule. Ops run in their order. A kernel that takes t seconds hides t seconds of the transfers in flight, and the
oldest unfinished one of a channel is hidden first: transfers between devices run one after another (XLA has one of
them in flight, unless flags allow several), and a second of compute hides one second of one of them. At its done, the
rest of a transfer is exposed: all wait for it, and for what the same channel has to finish before it. A synchronous
transfer is exposed from start to end. The channels (between devices, to the host, and from the host: a link carries
both directions at once) run in parallel: each can use all of the compute, and the others progress while one is waited
for. Where several transfers between devices may be in flight, those inside nodes and those between nodes have a channel
each (`Movement.link`): they use other links.

Loops, branches and calls between a start and its done are walked first: their own transfers use the compute in them,
and only the rest of it hides the outer transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from jaxpar.compiler.program.attribution import Movement
from jaxpar.compiler.program.costs.ops import Cost
from jaxpar.compiler.program.hlo.records import Computation, Module, Op
from jaxpar.compiler.program.loops import Shares, controlled, every_branch


@dataclass(frozen=True)
class Enclosed:
    """An op between a start and its done, with its time there."""

    op: Op
    seconds: float
    """Of all executions between one start and its done, loops inside included."""


@dataclass(frozen=True)
class Overlap:
    """One transfer of the program, with times."""

    movement: Movement
    seconds: float
    """Its time, per execution."""
    enclosed: tuple[Enclosed, ...] = field(repr=False)
    """Compute between its start and its done, in order. Empty for a synchronous one."""
    exposed: float
    """Seconds of one execution in which nothing is computed."""

    @property
    def enclosed_seconds(self) -> float:
        """Seconds of compute between one start and its done."""
        return sum(each.seconds for each in self.enclosed)

    @property
    def exposed_per_step(self) -> float:
        """Seconds of a step in which nothing but this transfer runs, over all its executions."""
        return self.exposed * self.movement.executions


@dataclass(frozen=True)
class Schedule:
    """A step with times."""

    overlaps: tuple[Overlap, ...]
    """Transfers, in the order of the movements that they were made from."""
    compute_seconds: float
    """Of all kernels of a step."""

    @property
    def exposed_seconds(self) -> float:
        """Of a step."""
        return sum(overlap.exposed_per_step for overlap in self.overlaps)

    @property
    def exposed_fraction(self) -> float:
        """Share of exposed transfers in the time of the step, compute and exposed together."""
        whole = self.compute_seconds + self.exposed_seconds
        return self.exposed_seconds / whole if whole else 0.0


def schedule(
    module: Module,
    movements: Sequence[Movement],
    costs: Sequence[Cost],
    kernel: Callable[[Cost], float],
    seconds: Callable[[Movement], float],
    shares: Shares = every_branch,
    channel: Callable[[Movement], str] = attrgetter("channel"),
) -> Schedule:
    """Walk the program and add up times.

    Args:
        module: The program.
        movements: Its transfers, from `attribution.movements`.
        costs: Costs of its ops, from `costs.costs`.
        kernel: Time of one execution of a kernel; 0 of a transfer.
        seconds: Time of one execution of a transfer on its link.
        shares: How often each branch of a conditional runs, as for `loops.executions`.
        channel: What a transfer shares with others: `Movement.channel`, or `link` where several may be in flight.
    """
    times = {cost.op.name: kernel(cost) for cost in costs}
    channels = {m.transfer.start.name: channel(m) for m in movements}
    clock = _Clock(module, {m.transfer.start.name: m for m in movements}, channels, times, seconds, shares)
    clock.run(module.entry_computation)
    found = tuple(clock.overlaps[m.transfer.start.name] for m in movements)
    return Schedule(found, sum(times[cost.op.name] * cost.executions for cost in costs))


@dataclass
class _Flight:
    """A transfer that has started."""

    movement: Movement
    channel: str
    seconds: float
    left: float
    enclosed: list[Enclosed] = field(default_factory=list)


@dataclass
class _Run:
    """The compute of one execution of a computation that can hide outer transfers."""

    compute: float
    """Seconds of compute."""
    free: dict[str, float]
    """Seconds of it per channel that hide no inner transfer."""


class _Clock:
    def __init__(
        self,
        module: Module,
        starts: Mapping[str, Movement],
        channels: Mapping[str, str],
        times: Mapping[str, float],
        seconds: Callable[[Movement], float],
        shares: Shares,
    ):
        self.module, self.starts, self.times, self.seconds, self.shares = module, starts, times, seconds, shares
        self._channel_of, self._channels = channels, tuple(dict.fromkeys(channels.values()))
        self.overlaps: dict[str, Overlap] = {}
        self._runs: dict[str, _Run] = {}

    def run(self, computation: Computation) -> _Run:
        """One execution of a computation; the same each time."""
        if computation.name not in self._runs:
            self._runs[computation.name] = self._walk(computation)
        return self._runs[computation.name]

    def _walk(self, computation: Computation) -> _Run:
        run = _Run(0.0, dict.fromkeys(self._channels, 0.0))
        flying: dict[str, _Flight] = {}
        by_done: dict[str, _Flight] = {}
        for op in computation.ops:
            inside = self._inside(op)
            if inside.compute:
                run.compute += inside.compute
                for flight in flying.values():
                    flight.enclosed.append(Enclosed(op, inside.compute))
                for channel in self._channels:
                    run.free[channel] += self._hide(flying, channel, inside.free[channel])
            if op.name in self.starts:
                movement = self.starts[op.name]
                needed = self.seconds(movement)
                flying[op.name] = flight = _Flight(movement, self._channel_of[op.name], needed, needed)
                by_done[movement.transfer.done.name] = flight
            if op.name in by_done:
                self._land(flying, by_done[op.name])
        return run

    def _inside(self, op: Op) -> _Run:
        """The compute of an op that can hide outer transfers."""
        own = self.times.get(op.name, 0.0)
        total = _Run(own, dict.fromkeys(self._channels, own))
        for called, count in controlled(self.module, op, self.shares):
            inner = self.run(called)
            total.compute += inner.compute * count
            for channel in self._channels:
                total.free[channel] += inner.free[channel] * count
        return total

    @staticmethod
    def _hide(flying: Mapping[str, _Flight], channel: str, seconds: float) -> float:
        """Advance the channel's transfers by `seconds`, oldest first; returns the seconds that none could use."""
        for flight in flying.values():
            if flight.channel == channel:
                used = min(flight.left, seconds)
                flight.left -= used
                seconds -= used
        return seconds

    def _land(self, flying: dict[str, _Flight], landing: _Flight) -> None:
        """Wait for a transfer, and for what its channel has to finish before it."""
        channel = landing.channel
        waited = 0.0
        for flight in list(flying.values()):
            if flight.channel == channel and not landing.movement.transfer.synchronous:
                waited += self._expose(flight)
            if flight is landing:
                break
        if landing.movement.transfer.synchronous:
            waited = self._expose(landing)
        for other in self._channels:
            if other != channel:
                self._hide(flying, other, waited)
        flying.pop(landing.movement.transfer.start.name)

    def _expose(self, flight: _Flight) -> float:
        """Finish a transfer while nothing is computed; returns the seconds that it takes."""
        name, waited = flight.movement.transfer.start.name, flight.left
        before = self.overlaps[name].exposed if name in self.overlaps else 0.0
        flight.left = 0.0
        self.overlaps[name] = Overlap(flight.movement, flight.seconds, tuple(flight.enclosed), before + waited)
        return waited
