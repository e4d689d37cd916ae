"""Messages of weights and gradients over the data ranks of a layout."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.cost.layer_case import LayerCase
from jaxpar.mesh.quantized.transport import Transport, secondary_ranks
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.common import Common


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

    def _expert_wire(self) -> Transport:
        """How weights of experts travel: their secondary shard has the neighbours that share an expert, if any."""
        layout, wire = self.layout, self.layout.wire
        sizes = {"fsdp": layout.fsdp, "expert": layout.expert, "context": layout.context}
        secondary = secondary_ranks(wire.secondary, sizes, ("expert",))
        assert secondary is not None, "neighbours that are whole ranks of an axis"
        return replace(wire, secondary=secondary)

    def of_layers(self, case: LayerCase, layers: int = 1) -> tuple[float, float]:
        """Seconds for so many layers of a case, whose weights are sharded, in a microbatch: gathered, forward and as
        long again backward, and reduced."""
        if self.layout.zero < 3:
            return 0.0, 0.0
        gather = self.shards.gather(layers * case.parameters, layers * case.coded)
        gather += self.expert_shards.gather(layers * case.experts, layers * case.coded_experts)
        scatter = self.shards.scatter(layers * case.trained) + self.expert_shards.scatter(layers * case.experts)
        return gather, scatter
