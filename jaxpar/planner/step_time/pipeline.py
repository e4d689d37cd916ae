"""A pipeline whose ranks run one program in uniform ticks: all wait for the slowest chunk of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.cost.layout import Layout
from jaxpar.planner.step_time.ticks import Chunk, all_ticks
from jaxpar.trace.clock import Clock
from jaxpar.trace.parts import WIRE, Message, Repeat, Run


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

    def chunk(self, layers: int) -> Chunk:
        """A chunk of so many layers."""
        return self.joined([(self.layer, layers)])

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
    ticks = all_ticks(layout.schedule, layout.pipe, microbatches, layout.virtual_stages)
    clock, slowest, seconds = pieces[0].clock, chunks[0], lambda run: run.seconds
    if len(chunks) > 1:
        forward, backward, weight = (max(runs, key=seconds) for runs in zip(*chunks, strict=True))
        if ticks.splits_backward:
            rest = max(chunks, key=lambda chunk: chunk.backward.seconds - chunk.weight.seconds)
            backward = clock.walk(Repeat("rest", rest.backward), Repeat("rest", rest.weight, -1), Repeat("W", weight))
        slowest = Chunk(forward, backward, weight)
    head, transfer = max((one.head for one in pieces), key=seconds), max(one.transfer for one in pieces)
    return ticks.run(clock, slowest, head, transfer)
