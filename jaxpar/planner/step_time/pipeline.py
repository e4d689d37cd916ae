"""A pipeline whose ranks run one program in uniform ticks, as a trace: all wait for the slowest chunk of each kind.

In lockstep the length of a tick follows from its composition: which of F, B and W some rank does, whether it has the
loss, and what is sent at its end. The ticks of each composition are counted once per schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, NamedTuple

from jaxpar.cost.layout import Layout
from jaxpar.hardware.sources import derived
from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.schedules.registry import SCHEDULES, make_schedule
from jaxpar.pipeline.transfers import receiver
from jaxpar.trace.clock import Clock
from jaxpar.trace.parts import WIRE, Done, Message, Part, Repeat, Run


class Chunk(NamedTuple):
    """One microbatch in a chunk, or in a layer."""

    forward: Run
    backward: Run
    """All of it."""
    weight: Run
    """The part of it that is gradients of weights."""


class Tick(NamedTuple):
    """The composition of a tick."""

    forward: bool
    backward: bool
    weight: bool
    head: bool
    forward_sends: bool
    backward_sends: bool

    def parts(self, chunk: Chunk, head: Run, transfer: float) -> Iterator[Part]:
        """A rank that computes while it sends; `chunk.backward` is without W where the schedule splits it."""
        if self.forward:
            yield Repeat("forward", chunk.forward)
            if self.forward_sends:
                yield Message("output", transfer, "forward", False, "pipe")
        if self.backward:
            yield Repeat("backward", chunk.backward)
            if self.head:
                yield Repeat("head", head)
            if self.backward_sends:
                yield Message("gradient", transfer, "backward", False, "pipe")
        if self.weight:
            yield Repeat("weight", chunk.weight)
        if self.forward_sends:
            yield Done("output")
        if self.backward_sends:
            yield Done("gradient")


class Ticks(NamedTuple):
    """A schedule's ticks by composition."""

    counts: tuple[tuple[Tick, int], ...]
    splits_backward: bool

    def run(self, clock: Clock, chunk: Chunk, head: Run, transfer: float) -> Run:
        """All ticks, as `pipeline.simulate` has them in `lockstep`, of chunks of one length; `head` is loss and head,
        `transfer` what is sent from a rank to the next."""
        if self.splits_backward:
            rest = clock.walk(Repeat("backward", chunk.backward), Repeat("weight", chunk.weight, -1))
            chunk = chunk._replace(backward=rest)
        ticks = ((clock.walk(*tick.parts(chunk, head, transfer)), times) for tick, times in self.counts)
        return clock.walk(*(Repeat("tick", tick, times) for tick, times in ticks))

    def continued(self, before: Ticks, steps: int) -> Ticks:
        """Extrapolates: `steps` further steps, each as large as that to this from `before`."""
        counts = dict(before.counts)
        made = {tick: n + steps * (n - counts.get(tick, 0)) for tick, n in self.counts}
        return Ticks(tuple((tick, n) for tick, n in made.items() if n), self.splits_backward)


TICKS = derived("ticks of schedules, which grow by equally many: tests/planner/step_time/test_ticks.py")
FEW: Annotated[int, TICKS] = 4
"""Ranks of the first of two pipelines: at equal microbatches per rank, each further rank adds equally many ticks of
each composition."""
MORE: Annotated[int, TICKS] = 8
"""Ranks of the second."""
FEW_CHUNKS: Annotated[int, TICKS] = 2
"""Virtual stages of the first of two pipelines, for schedules that take any number; each further one adds equally many
ticks too."""
MORE_CHUNKS: Annotated[int, TICKS] = 3
"""Virtual stages of the second."""


@lru_cache(maxsize=10_000)
def ticks_of(schedule: str, ranks: int, microbatches: int, virtual_stages: int) -> Ticks:
    """The ticks of a published schedule, counted; many microbatches, long pipelines and many chunks are extrapolated
    from two short. A pipeline repeats itself every so many microbatches as it has ranks."""
    least = max(1, SCHEDULES[schedule].microbatches_per_rank)  # DualPipe-V cannot be made of fewer than 2p
    again = microbatches // ranks - least
    if again > 1:
        short = microbatches - again * ranks
        first, second = (ticks_of(schedule, ranks, short + extra * ranks, virtual_stages) for extra in (0, 1))
        return second.continued(first, again - 1)
    if virtual_stages > MORE_CHUNKS and SCHEDULES[schedule].virtual_stages[1] is None:
        few, more = (ticks_of(schedule, ranks, microbatches, v) for v in (FEW_CHUNKS, MORE_CHUNKS))
        return more.continued(few, virtual_stages - MORE_CHUNKS)
    each, rest = divmod(microbatches, ranks)
    if ranks <= MORE or ranks % FEW or rest:
        return counted_ticks(schedule, ranks, microbatches, virtual_stages)
    few, more = (counted_ticks(schedule, p, each * p, virtual_stages) for p in (FEW, MORE))
    return more.continued(few, (ranks - MORE) // (MORE - FEW))


@lru_cache(maxsize=10_000)
def counted_ticks(schedule: str, ranks: int, microbatches: int, virtual_stages: int) -> Ticks:
    """The ticks of a published schedule, counted."""
    table = make_schedule(schedule, ranks=ranks, microbatches=microbatches, virtual_stages=virtual_stages)
    ticks: Counter[Tick] = Counter()
    last = table.chunks - 1
    for tick in table.ticks:
        actions = [action for of_rank in tick for action in of_rank]
        has = {kind: [action for action in actions if action.kind is kind] for kind in Kind}
        sends = lambda kind, has=has: any(receiver(action, table) is not None for action in has[kind])
        ticks[
            Tick(
                bool(has[Kind.FORWARD]),
                bool(has[Kind.BACKWARD]),
                bool(has[Kind.WEIGHT]),
                any(action.chunk == last for action in has[Kind.BACKWARD]),
                sends(Kind.FORWARD),
                sends(Kind.BACKWARD),
            )
        ] += 1
    return Ticks(tuple(ticks.items()), table.splits_backward)


@dataclass(frozen=True)
class Pieces:
    """The durations that the ticks of a pipeline are made of."""

    clock: Clock
    layer: Chunk
    """An average layer."""
    head: Run
    """Loss and head, forward and backward."""
    transfer: float
    """Seconds from a rank to the next."""
    sums: float = 0.0
    """Seconds of a sum over all ranks, which share embedding and head, in every forward of a chunk and every
    backward."""
    gather: float = 0.0
    """Seconds of the gather of the first layer of a chunk in each of them, beside which nothing runs."""

    def joined(self, layers: Sequence[tuple[Chunk, float]], padding: float = 0.0) -> Chunk:
        """A chunk of so many of each layer, and of seconds of messages of others that pad it."""
        waits = ("pipe", self.sums), ("data", self.gather + padding)
        return joined(self.clock, layers, [Message(kind, time, WIRE, True, kind) for kind, time in waits if time])


def joined(clock: Clock, layers: Sequence[tuple[Chunk, float]], ends: Sequence[Message] = ()) -> Chunk:
    """So many of each layer, with these messages in the forward and in the backward."""
    of_all = lambda name: (Repeat(name, getattr(layer, name), number) for layer, number in layers)
    forward, backward = (clock.walk(*ends, *of_all(name)) for name in ("forward", "backward"))
    return Chunk(forward, backward, clock.walk(*of_all("weight")))


def run_pipeline(layout: Layout, microbatches: int, chunks: Sequence[Chunk], pieces: Sequence[Pieces]) -> Run:
    """From the start of the first forward to the end of the last backward, of chunks in the order of the model, with
    the slowest head and transfers; for each kind of work all wait for the chunk that takes longest for it."""
    ticks = ticks_of(layout.schedule, layout.pipe, microbatches, layout.virtual_stages)
    clock, slowest, seconds = pieces[0].clock, chunks[0], lambda run: run.seconds
    if len(chunks) > 1:
        forward, backward, weight = (max(runs, key=seconds) for runs in zip(*chunks, strict=True))
        if ticks.splits_backward:
            rest = max(chunks, key=lambda chunk: chunk.backward.seconds - chunk.weight.seconds)
            backward = clock.walk(Repeat("rest", rest.backward), Repeat("rest", rest.weight, -1), Repeat("W", weight))
        slowest = Chunk(forward, backward, weight)
    head, transfer = max((one.head for one in pieces), key=seconds), max(one.transfer for one in pieces)
    return ticks.run(clock, slowest, head, transfer)
