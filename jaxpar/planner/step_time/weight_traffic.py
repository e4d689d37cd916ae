"""Messages of weights and gradients: their groups of ranks, and how often a pipeline's executor sends them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.layout import Layout
from jaxpar.hardware.sources import derived
from jaxpar.layout.choices.pipeline import holds
from jaxpar.mesh.quantized.transport import Transport, hpz_ranks
from jaxpar.pipeline.schedules.registry import SCHEDULES
from jaxpar.planner.step_time.common import Common

SLICED: Annotated[float, derived("16 bits, read and written")] = 4.0
"""Bytes that a microbatch moves for each number of a layer's weights as they rest on a device: they are copied out of
the stack of layers, forward and again backward."""
SLICED_GRADIENT: Annotated[float, derived("float32 copied out, added to, copied in")] = 20.0
"""The same of its accumulators, as these rest."""


def held_seconds(layout: Layout, gather: float, scatter: float) -> tuple[float, float]:
    """Seconds of the gathers and of the reductions of a step whose chunks are held, of which the messages of one take
    `gather` and `scatter` seconds: chunks are gathered for their forwards and for their backwards, the last one once
    for both. Chunks that are not held are gathered and reduced in each tick in which some rank computes with one."""
    return (2 * layout.virtual_stages - 1) * gather, layout.virtual_stages * scatter


def holds_chunks(layout: Layout) -> bool:
    """Whether the executor holds whole chunks while microbatches go through them."""
    shards = layout.fsdp * layout.expert * layout.context
    return layout.pipe > 1 and holds(layout.schedule, layout.virtual_stages, layout.zero, shards)


def reduces_with_weights(layout: Layout) -> bool:
    """Whether layers' gradients are reduced in ticks with W."""
    return layout.pipe > 1 and layout.zero == 3 and SCHEDULES[layout.schedule].splits_backward


class DataMessages:
    """The groups of ranks over which weights and gradients of a layout travel."""

    def __init__(self, where: Common, layout: Layout, item: float):
        """`item` is the bytes of a stored weight."""
        self.layout = layout
        own = layout.wire
        shards = layout.fsdp * layout.expert * layout.context
        self.shards = where.messages(own, shards, layout.tensor, item)
        self.data = where.messages(own, layout.data * layout.context, layout.tensor, item)
        self.replicas = where.messages(own, layout.replica, shards * layout.tensor, item)
        self.replica_weights = where.messages(own.exact, layout.replica, shards * layout.tensor, item)
        # Experts lie over `expert`, and their gradients are summed over the other data ranks only.
        apart, wire = layout.expert * layout.tensor, self._expert_wire()
        self.expert_shards = where.messages(wire, layout.fsdp * layout.context, apart, item)
        self.expert_data = where.messages(wire, layout.replica * layout.fsdp * layout.context, apart, item)
        ranks, full = (self.shards.ranks, self.expert_shards.ranks), (1, 1)
        in_shards = layout.zero == 3 and not holds_chunks(layout)
        sums_shards = in_shards or (layout.zero == 2 and layout.pipe == 1)
        self.at_rest = (ranks if in_shards else full), (ranks if sums_shards else full)
        """Ranks over which weights are split in the stacks, and those of experts, and accumulators likewise."""

    def _expert_wire(self) -> Transport:
        """How weights of experts travel: their hpZ shard has the neighbours that share an expert, if any."""
        layout, wire = self.layout, self.layout.wire
        sizes = {"fsdp": layout.fsdp, "expert": layout.expert, "context": layout.context}
        hpz = hpz_ranks(wire.hpz, sizes, ("expert",))
        assert hpz is not None, "neighbours that are whole ranks of an axis"
        return replace(wire, hpz=hpz)

    def stack_bytes(self, case: LayerCase) -> tuple[float, float]:
        """Bytes of weights and accumulators that a layer copies out of the stacks of all layers and into them in a
        microbatch, forward and backward. Copies of saved activations are left out: saving takes no longer than
        recomputing, on which the bounds of the search rest."""
        (dense, experts), (summed, summed_experts) = self.at_rest
        weights = SLICED * (case.parameters / dense + case.experts / experts)
        gradients = SLICED_GRADIENT * (case.trained / summed + case.experts / summed_experts)
        return weights, weights + gradients

    def of_layers(self, case: LayerCase, layers: int = 1) -> tuple[float, float]:
        """Seconds for so many layers of a case, whose weights are sharded, in a microbatch: gathered, forward and as
        long again backward, and reduced."""
        if self.layout.zero < 3:
            return 0.0, 0.0
        dense, experts = case.joined
        share = layers / dense
        gather = dense * self.shards.gather(share * case.parameters, share * case.quantized_parameters)
        gather += experts * self.expert_shards.gather(
            layers / experts * case.experts, layers / experts * case.quantized_experts
        )
        scatter = dense * self.shards.scatter(share * case.trained)
        return gather, scatter + experts * self.expert_shards.scatter(layers / experts * case.experts)
