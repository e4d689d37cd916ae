"""Seconds of a pipeline whose ranks run one program in uniform ticks: all wait for the slowest chunk of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jaxpar.pipeline.schedules.registry import SCHEDULES
from jaxpar.planner.step_time.ticks import ChunkTime, ticks_of


@dataclass(frozen=True)
class Stages:
    """A pipeline's shape."""

    schedule: str
    ranks: int
    microbatches: int
    virtual: int


@dataclass(frozen=True)
class Pieces:
    """Durations, in seconds."""

    forward: float
    """Seconds of a layer."""
    backward: float
    """Seconds of a layer, all of it."""
    weight: float
    """The part of it that is gradients of weights."""
    head: float
    """Loss and head, forward and backward."""
    transfer: float
    """From a rank to the next."""
    sums: float = 0.0
    """A sum over all ranks, which share embedding and head, in every forward of a chunk and every backward."""
    gather: float = 0.0
    """The gather of the first layer of a chunk in each of them, beside which nothing runs."""

    @property
    def of_chunk(self) -> float:
        """Seconds of a forward, and of a backward, that do not grow with the layers of a chunk."""
        return self.sums + self.gather

    def chunk(self, layers: int) -> ChunkTime:
        """The seconds of a chunk of so many layers."""
        forward, backward = self.forward * layers + self.of_chunk, self.backward * layers + self.of_chunk
        return ChunkTime(forward, backward, self.weight * layers)


def seconds_of_chunks(stages: Stages, chunks: Sequence[ChunkTime], head: float, transfer: float) -> float:
    """Seconds from the start of the first forward to the end of the last backward, of chunks in the order of the model;
    for each kind of work all wait for the chunk that takes longest for it."""
    weight = max(chunk.weight for chunk in chunks)
    backward = max(chunk.backward for chunk in chunks)
    if SCHEDULES[stages.schedule].splits_backward:
        backward = weight + max(chunk.backward - chunk.weight for chunk in chunks)
    slowest = ChunkTime(max(chunk.forward for chunk in chunks), backward, weight)
    return pipeline_seconds(stages, slowest, head, transfer)


def pipeline_seconds(stages: Stages, chunk: ChunkTime, head: float, transfer: float) -> float:
    """The same of chunks that all take as long as `chunk`. A pipeline repeats itself every so many microbatches as it
    has ranks, so long ones are extrapolated from short ones."""
    period = stages.ranks
    least = max(1, SCHEDULES[stages.schedule].microbatches_per_rank)  # DualPipe-V cannot be made of fewer than 2p
    more = max(0, stages.microbatches // period - least)
    seconds = lambda number: ticks_of(stages.schedule, stages.ranks, number, stages.virtual).seconds(
        chunk, head, transfer
    )
    if more <= 1:
        return seconds(stages.microbatches)
    short = stages.microbatches - more * period
    first, second = (seconds(short + extra * period) for extra in (0, 1))
    return first + more * (second - first)


@lru_cache(maxsize=10_000)
def chunk_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk: as even as possible; the middle ones take the remainder."""
    each, over = divmod(layers, chunks)
    first = (chunks - over) // 2
    return tuple(each + (first <= chunk < first + over) for chunk in range(chunks))
