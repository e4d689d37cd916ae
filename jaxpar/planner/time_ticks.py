"""Seconds of a pipeline in uniform ticks, without going through them again for each set of durations.

In lockstep a tick lasts as long as what it is made of: which of F, B and W some rank does, whether the loss is in it,
and what is sent at its end. A schedule is so many ticks of each make; these are counted once.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.schedules.registry import SCHEDULES, make_schedule
from jaxpar.pipeline.transfers import receiver


class Tick(NamedTuple):
    """What a tick is made of."""

    forward: bool
    backward: bool
    weight: bool
    head: bool
    forward_sends: bool
    backward_sends: bool

    def seconds(
        self, forward: float, backward: float, weight: float, head: float, transfer: float, overlap: bool
    ) -> float:
        """How long it takes; `backward` without `weight` where the schedule splits them."""
        now = arrived = 0.0
        kinds = (
            (self.forward, forward, self.forward_sends),
            (self.backward, backward + head * self.head, self.backward_sends),
            (self.weight, weight, False),
        )
        for present, length, sends in kinds:
            now += length * present
            if sends:
                arrived = now + transfer
                now = now if overlap else arrived
        return max(now, arrived)


class Ticks(NamedTuple):
    """A schedule's ticks by their make."""

    counts: tuple[tuple[Tick, int], ...]
    splits_backward: bool


FEW, MORE = 4, 8
"""Ranks of two pipelines: with as many microbatches a rank, each further rank adds as many ticks of each make."""
FEW_CHUNKS, MORE_CHUNKS = 2, 3
"""Virtual stages of two pipelines, for schedules that take any number: the same holds of further ones."""


@lru_cache(maxsize=10_000)
def ticks_of(schedule: str, ranks: int, microbatches: int, virtual_stages: int) -> Ticks:
    """The ticks of a published schedule, counted; those of long pipelines, and of many chunks, from two short ones."""
    if virtual_stages > MORE_CHUNKS and SCHEDULES[schedule].virtual_stages[1] is None:
        few, more = (ticks_of(schedule, ranks, microbatches, v) for v in (FEW_CHUNKS, MORE_CHUNKS))
        return _continued(few, more, virtual_stages - MORE_CHUNKS)
    each, rest = divmod(microbatches, ranks)
    if ranks <= MORE or ranks % FEW or rest:
        return counted_ticks(schedule, ranks, microbatches, virtual_stages)
    few, more = (counted_ticks(schedule, p, each * p, virtual_stages) for p in (FEW, MORE))
    return _continued(few, more, (ranks - MORE) // (MORE - FEW))


def _continued(few: Ticks, more: Ticks, steps: int) -> Ticks:
    """So many steps beyond `more`, each as long as that from `few`."""
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


def lockstep_seconds(
    schedule: str,
    ranks: int,
    microbatches: int,
    virtual_stages: int,
    forward: float,
    backward: float,
    weight: float,
    head: float,
    transfer: float,
    overlap: bool,
) -> float:
    """The makespan, as `pipeline.simulate` has it in `lockstep`.

    Args:
        schedule: a published one.
        ranks: of the pipeline.
        microbatches: of a step.
        virtual_stages: chunks of a rank.
        forward: of the longest chunk.
        backward: of the same, all of it.
        weight: the part of it that is gradients of weights.
        head: loss and head.
        transfer: from a rank to the next.
        overlap: whether transfers run beside compute.
    """
    ticks = ticks_of(schedule, ranks, microbatches, virtual_stages)
    own = backward - weight if ticks.splits_backward else backward
    return sum(number * tick.seconds(forward, own, weight, head, transfer, overlap) for tick, number in ticks.counts)
