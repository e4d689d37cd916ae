"""A compiled program as a trace: its kernels, its transfers between start and done, its loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from jaxpar.compiler.program.attribution import Movement
from jaxpar.compiler.program.hlo.records import Module
from jaxpar.compiler.program.loops import controlled
from jaxpar.trace.clock import Clock, Timed
from jaxpar.trace.parts import Done, Message, Op, Repeat, Run, Trace


@dataclass(frozen=True)
class Overlap:
    """A transfer of the program, with its times."""

    movement: Movement
    time: Timed

    @property
    def exposed_per_step(self) -> float:
        """Seconds of a step in which nothing but this transfer runs."""
        return self.time.exposed * self.movement.executions


@dataclass(frozen=True)
class Schedule:
    """A program on the clock."""

    clock: Clock
    step: Run
    traces: Mapping[str, Trace]
    """The inner runs, by the name of the computation that each was made from."""
    overlaps: tuple[Overlap, ...]
    """In the order of the movements."""

    @property
    def exposed_seconds(self) -> float:
        """Seconds of a step in which only transfers run."""
        return sum(overlap.exposed_per_step for overlap in self.overlaps)

    @property
    def slowed_seconds(self) -> float:
        """Seconds that the compute of a step loses to transfers beside it."""
        return sum(overlap.time.slowed * overlap.movement.executions for overlap in self.overlaps)


def schedule(
    module: Module,
    movements: Sequence[Movement],
    kernels: Mapping[str, float],
    seconds: Callable[[Movement], float],
    slowdown: float,
    channel: Callable[[Movement], str] = attrgetter("channel"),
    kinds: Mapping[str, str] | None = None,
) -> Schedule:
    """Run a program on the clock.

    Args:
        module: the program.
        movements: its transfers.
        kernels: seconds of one execution of each kernel, by name of its op.
        seconds: time of one execution of a transfer on its link.
        slowdown: as for `Clock`.
        channel: what a transfer shares with others: `Movement.channel`, or `link` where several may be in flight.
        kinds: the kind of each kernel, by name of its op.
    """
    starts = {one.transfer.start.name: one for one in movements}
    dones = {one.transfer.done.name: name for name, one in starts.items() if not one.transfer.synchronous}
    traces: dict[str, Trace] = {}
    kinds = {} if kinds is None else kinds

    def trace(name: str) -> Trace:
        if name not in traces:
            parts = []
            for op in module.computations[name].ops:
                if (took := kernels.get(op.name, 0.0)) > 0:
                    parts.append(Op(op.name, took, kinds.get(op.name, "compute")))
                for called, times in controlled(module, op):
                    parts.append(Repeat(op.name, trace(called.name), times))
                if (one := starts.get(op.name)) is not None:
                    parts.append(Message(op.name, seconds(one), channel(one), one.transfer.synchronous, one.part))
                if op.name in dones:
                    parts.append(Done(dones[op.name]))
            traces[name] = Trace(name, tuple(parts))
        return traces[name]

    clock = Clock(slowdown, records=True)
    step = clock.run(trace(module.entry))
    overlaps = (Overlap(one, clock.messages[name]) for name, one in starts.items())
    return Schedule(clock, step, traces, tuple(overlaps))
