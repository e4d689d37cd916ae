"""Messages of tensor and context ranks in a layer."""

from __future__ import annotations

from jaxpar.attention.context import neighbours
from jaxpar.attention.ulysses import repeats
from jaxpar.config.counting import head_dim, value_dim
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.messages import Network, Ring
from jaxpar.layers.declaration.part import Recurrence
from jaxpar.layers.linear_attention.transports import TRANSPORTS
from jaxpar.trace.clock import added


def state_seconds(transport: str, one: Recurrence, rows: int, tensor: int, ring: Ring) -> float:
    """Seconds of the messages by which context ranks pass on a state of so many rows, one way."""
    if ring.ranks == 1:
        return 0.0
    mapped, made = (rows * size / tensor for size in (one.mapped, one.made))
    messages = TRANSPORTS[transport].messages(mapped, made, ring.ranks)
    return messages.count * (ring.gather if messages.kind == "gather" else ring.shift)(messages.size)


class LayerMessages:
    """The seconds that are not hidden of what tensor and context ranks send in a layer."""

    def __init__(self, case: LayerCase, network: Network):
        self.case = case
        self.slowdown = network.model.overlap_slowdown
        self.ranks, self.heads = case.shape.context, case.shape.model.heads
        self.widths = head_dim(case.shape.model) + value_dim(case.shape.model)
        """Widths of a key and a value, or of a query and its output."""
        ring = network.ring(case.tensor, 1)
        numbers = case.tokens * case.embed
        self.gathered = lambda sent_bytes: ring.gather(numbers * sent_bytes) if case.tensor > 1 else 0.0
        """Seconds of a gather of the residual stream, of so many bytes a number."""
        self.half = self.gathered(case.item)
        group = 1
        if case.context_strategy == "usp":
            group = neighbours(self.ranks, self.heads // case.tensor, max(1, network.per_host // case.tensor))
        elif case.context_strategy == "ulysses":
            group = self.ranks
        self.group = group
        """Neighbouring context ranks that exchange sequence for heads; a ring runs between the groups."""
        self.over_group = network.ring(group, case.tensor)
        self.between_groups = network.ring(self.ranks // group, case.tensor * group)
        self.over_context = network.ring(self.ranks, case.tensor)

    def backward(self, inward: bool, width: float, sent_bytes: float, gradient: float) -> float:
        """Around the backward of a group of matmuls.

        Inward, split by columns: the input, of a `width` in that of the residual stream, is gathered again beside the
        gradient of the input, of so many seconds, which is summed. Outward, split by rows: the gradient is gathered
        first.
        """
        gather = width * self.gathered(sent_bytes)
        if not inward:
            return gather
        return added(gather, gradient, self.slowdown) + width * self.half

    def states(self, one: Recurrence) -> float:
        """The messages in which context ranks pass on a state, one way; by the fastest transport where none is
        named."""
        asked, case = self.case.state_messages, self.case
        names = TRANSPORTS if asked == "auto" else [asked]
        return min(state_seconds(name, one, case.shape.rows, case.tensor, self.over_context) for name in names)

    def context(self) -> tuple[float, float]:
        """Forward and backward, by strategy; jaxpar computes nothing beside them."""
        case = self.case
        if self.ranks == 1:
            return 0.0, 0.0
        heads = case.shape.kv_heads
        part = float(case.tokens * heads * self.widths * case.item)
        if case.context_strategy == "allgather":
            forward = self.over_context.gather(part * self.ranks)
            return forward, 2 * forward
        part *= repeats(heads, self.group)
        query = float(case.tokens * self.heads * self.widths // case.tensor * case.item) / 2
        exchanged = 2 * self.over_group.exchange(query) + self.over_group.exchange(part)
        # Backward, keys and values are sent round the ring again, and the gradients of both in float32.
        steps, ring = self.ranks // self.group - 1, self.between_groups
        return exchanged + steps * ring.shift(part), exchanged + steps * ring.shift(part * (1 + 4 / case.item))
