"""Seconds of a pipeline in uniform ticks, without a simulation for each set of durations.

In lockstep the length of a tick follows from its composition: which of F, B and W some rank does, whether it has the
loss, and what is sent at its end. The ticks of each composition are counted once per schedule.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.schedules.registry import SCHEDULES, make_schedule
from jaxpar.pipeline.transfers import receiver


class ChunkTime(NamedTuple):
    """Seconds of one microbatch in a chunk."""

    forward: float
    backward: float
    """All of it."""
    weight: float
    """The part of it that is gradients of weights."""


class Tick(NamedTuple):
    """The composition of a tick."""

    forward: bool
    backward: bool
    weight: bool
    head: bool
    forward_sends: bool
    backward_sends: bool

    def seconds(self, chunk: ChunkTime, head: float, transfer: float) -> float:
        """Its length, where a rank computes while it sends; `chunk.backward` without W where the schedule splits it."""
        now = arrived = 0.0
        kinds = (
            (self.forward, chunk.forward, self.forward_sends),
            (self.backward, chunk.backward + head * self.head, self.backward_sends),
            (self.weight, chunk.weight, False),
        )
        for present, length, sends in kinds:
            now += length * present
            if sends:
                arrived = now + transfer
        return max(now, arrived)


class Ticks(NamedTuple):
    """A schedule's ticks by composition."""

    counts: tuple[tuple[Tick, int], ...]
    splits_backward: bool

    def seconds(self, chunk: ChunkTime, head: float, transfer: float) -> float:
        """The makespan, as `pipeline.simulate` has it in `lockstep`, of chunks of one length; `head` is loss and head,
        `transfer` what is sent from a rank to the next."""
        if self.splits_backward:
            chunk = chunk._replace(backward=chunk.backward - chunk.weight)
        return sum(number * tick.seconds(chunk, head, transfer) for tick, number in self.counts)


FEW, MORE = 4, 8
"""Ranks of two pipelines: at equal microbatches per rank, each further rank adds equally many ticks of each
composition."""
FEW_CHUNKS, MORE_CHUNKS = 2, 3
"""Virtual stages of two pipelines, for schedules that take any number; each further one adds equally many ticks too."""


@lru_cache(maxsize=10_000)
def ticks_of(schedule: str, ranks: int, microbatches: int, virtual_stages: int) -> Ticks:
    """The ticks of a published schedule, counted; long pipelines and many chunks are extrapolated from two short."""
    if virtual_stages > MORE_CHUNKS and SCHEDULES[schedule].virtual_stages[1] is None:
        few, more = (ticks_of(schedule, ranks, microbatches, v) for v in (FEW_CHUNKS, MORE_CHUNKS))
        return _continued(few, more, virtual_stages - MORE_CHUNKS)
    each, rest = divmod(microbatches, ranks)
    if ranks <= MORE or ranks % FEW or rest:
        return counted_ticks(schedule, ranks, microbatches, virtual_stages)
    few, more = (counted_ticks(schedule, p, each * p, virtual_stages) for p in (FEW, MORE))
    return _continued(few, more, (ranks - MORE) // (MORE - FEW))


def _continued(few: Ticks, more: Ticks, steps: int) -> Ticks:
    """Extrapolates: `steps` further steps beyond `more`, each as large as that from `few`."""
    before = dict(few.counts)
    made = {tick: n + steps * (n - before.get(tick, 0)) for tick, n in more.counts}
    return Ticks(tuple((tick, n) for tick, n in made.items() if n), more.splits_backward)


@lru_cache(maxsize=10_000)
def counted_ticks(schedule: str, ranks: int, microbatches: int, virtual_stages: int) -> Ticks:
    """The ticks of a published schedule, counted."""
    table = make_schedule(schedule, ranks=ranks, microbatches=microbatches, virtual_stages=virtual_stages)
    found: Counter[Tick] = Counter()
    last = table.chunks - 1
    for tick in table.ticks:
        actions = [action for of_rank in tick for action in of_rank]
        has = {kind: [action for action in actions if action.kind is kind] for kind in Kind}
        sends = lambda kind, has=has: any(receiver(action, table) is not None for action in has[kind])
        found[
            Tick(
                bool(has[Kind.FORWARD]),
                bool(has[Kind.BACKWARD]),
                bool(has[Kind.WEIGHT]),
                any(action.chunk == last for action in has[Kind.BACKWARD]),
                sends(Kind.FORWARD),
                sends(Kind.BACKWARD),
            )
        ] += 1
    return Ticks(tuple(found.items()), table.splits_backward)
