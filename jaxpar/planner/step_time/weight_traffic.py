"""How often a pipeline's executor gathers weights and reduces gradients under ZeRO, from the ticks of its schedule."""

from __future__ import annotations

from typing import NamedTuple

from jaxpar.layout.choices.pipeline import holds
from jaxpar.pipeline.schedules.registry import SCHEDULES
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.ticks import ticks_of


class Sliced(NamedTuple):
    """Bytes that a pipeline's program moves in a tick for each number of a chunk's weights, where all of a rank's
    chunks lie whole on the device: it copies the chunk out of the stack of chunks, and its gradients back in."""

    forward: float = 4.0
    """A weight of 16 bits, read and written."""
    backward: float = 4.0
    """The same again."""
    gradient: float = 20.0
    """An accumulator in float32: copied out, added to, and copied in. Of the compiled programs of 405B (pipe 16,
    four chunks) and 175B (pipe 16, three) it is all but a tenth and a quarter of the memory traffic, of which XLA's own
    recomputation is the rest."""


SLICED = Sliced()


class WeightMessages(NamedTuple):
    """Messages of one layer in a step, on average over the layers of a rank."""

    gathers: float
    scatters: float


def weight_messages(layout: Layout, microbatches: int) -> WeightMessages:
    """Messages of a layer's weights and gradients in a step of a pipeline in uniform ticks.

    Under ZeRO-3 every rank gathers a chunk of its v in each tick in which some rank goes forward, and in each in which
    one goes backward; it reduces gradients in each tick with B, or with W where the backward is split. Chunks that are
    held are gathered for their forwards and for their backwards, the last one once for both. Below ZeRO-3 weights are
    gathered, and gradients reduced, once.
    """
    if layout.zero < 3:
        return WeightMessages(min(layout.zero, 1), min(layout.zero, 1))
    v = layout.virtual_stages
    if holds_chunks(layout):
        return WeightMessages((2 * v - 1) / v, 1.0)
    ticks = ticks_of(layout.schedule, layout.pipe, microbatches, v)
    forward, backward, weight = (
        sum(number for tick, number in ticks.counts if getattr(tick, kind)) / v
        for kind in ("forward", "backward", "weight")
    )
    return WeightMessages(forward + backward, weight if ticks.splits_backward else backward)


def held_seconds(layout: Layout, gather: float, scatter: float) -> tuple[float, float]:
    """Seconds of the gathers and of the reductions of a step whose chunks are held, of which the messages of one take
    `gather` and `scatter` seconds."""
    counts, v = weight_messages(layout, 1), layout.virtual_stages  # whatever the number of microbatches
    return v * counts.gathers * gather, v * counts.scatters * scatter


def holds_chunks(layout: Layout) -> bool:
    """Whether the executor holds whole chunks while microbatches go through them."""
    shards = layout.fsdp * layout.expert * layout.context
    return layout.pipe > 1 and holds(layout.schedule, layout.virtual_stages, layout.zero, shards)


def slices_chunks(layout: Layout) -> bool:
    """Whether whole weights and accumulators of a chunk are copied out of their stacks, and in, in each tick."""
    return layout.pipe > 1 and layout.zero < 3


def reduces_with_weights(layout: Layout) -> bool:
    """Whether layers' gradients are reduced in ticks with W."""
    return layout.pipe > 1 and layout.zero == 3 and SCHEDULES[layout.schedule].splits_backward
