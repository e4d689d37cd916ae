"""Messages of tensor and context ranks in a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxpar.attention.context import neighbours
from jaxpar.attention.ulysses import repeats
from jaxpar.config.counting import head_dim, value_dim
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.cost.messages import Network, interleaved, overlapped


class Exchanged(NamedTuple):
    """What tensor ranks exchange around a group of matmuls in its backward, and what it computes."""

    inward: bool
    """Whether the group is split by columns; else by rows."""
    width: float
    """Of what is exchanged, in that of the residual stream."""
    sent_bytes: float
    """Of a number that is gathered."""
    of_input: float
    """Seconds of the gradient of the input."""
    of_weights: float
    """Seconds of those of the weights."""


class LayerMessages:
    """The seconds that are not hidden of what tensor and context ranks send in a layer."""

    def __init__(self, case: LayerCase, network: Network, does: Mechanisms):
        self.case, self.does = case, does
        self.slowdown = network.model.overlap_slowdown
        self.ranks, self.heads = case.shape.context, case.shape.model.heads
        self.widths = head_dim(case.shape.model) + value_dim(case.shape.model)
        """Of a key and a value, or of a query and its output."""
        ring = network.ring(case.tensor, 1)
        numbers = case.tokens * case.embed
        whole = float(numbers * case.item)
        self.parallel = case.sequence_parallel
        self.gathered = lambda sent_bytes: ring.gather(numbers * sent_bytes) if case.tensor > 1 else 0.0
        """Seconds of a gather of the residual stream, of so many bytes a number."""
        self.half = self.gathered(case.item)
        self.full = ring.reduce(whole) if case.tensor > 1 else 0.0
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

    def _exposed(self, matmul: float, message: float) -> float:
        if self.does.overlap_tensor and message:
            return max(0.0, interleaved(matmul, message, self.slowdown, self.case.tensor) - matmul)
        return message

    def gather(self, matmul: float, width: float, sent_bytes: float) -> float:
        """Before a matmul that is split by columns, of inputs of a `width` in those of the residual stream and of so
        many bytes a number: nothing without sequence parallelism."""
        return self._exposed(matmul, width * self.gathered(sent_bytes)) if self.parallel else 0.0

    def scatter(self, matmul: float) -> float:
        """After a matmul that is split by rows: the sum over the ranks."""
        return self._exposed(matmul, self.half if self.parallel else self.full)

    def backward(self, groups: Sequence[Exchanged]) -> float:
        """Of the backward of groups of matmuls.

        Inward, split by columns: the gradient of the input is summed, beside the gradient of the weight where the
        software can; with sequence parallelism the input is gathered again beside the gradient of the input. Outward,
        split by rows: with sequence parallelism the gradient is gathered first.
        """
        if self.case.tensor == 1:
            return 0.0
        exposed = 0.0
        for one in groups:
            gather = one.width * self.gathered(one.sent_bytes)
            if not self.parallel:
                exposed += self._beside(one.of_weights, one.width * self.full) if one.inward else 0.0
            elif one.inward:
                exposed += self._beside(one.of_input, gather, always=True)
                exposed += self._beside(one.of_weights, one.width * self.half)
            else:
                exposed += self._exposed(one.of_input, gather)
        return exposed

    def _beside(self, compute: float, message: float, always: bool = False) -> float:
        if self.does.overlap_weight_gradient or always:
            return overlapped(compute, message, self.slowdown) - compute
        return message

    def context(self, core: float, core_back: float) -> tuple[float, float]:
        """Forward and backward, by strategy."""
        case = self.case
        if self.ranks == 1:
            return 0.0, 0.0
        heads = case.shape.kv_heads
        part = float(case.tokens * heads * self.widths * case.item)
        if case.context_strategy == "allgather":
            forward = self.over_context.gather(part * self.ranks)
            return self._beside_core(core, forward), self._beside_core(core_back, 2 * forward)
        part *= repeats(heads, self.group)
        query = float(case.tokens * self.heads * self.widths // case.tensor * case.item) / 2
        exchanged = 2 * self.over_group.exchange(query) + self.over_group.exchange(part)
        # Backward, keys and values are sent round the ring again, and the gradients of both in float32.
        steps, ring = self.ranks // self.group - 1, self.between_groups
        forward, backward = steps * ring.shift(part), steps * ring.shift(part * (1 + 4 / case.item))
        share = steps / (steps + 1)
        return (
            exchanged + self._beside_core(core * share, forward),
            exchanged + self._beside_core(core_back * share, backward),
        )

    def _beside_core(self, core: float, message: float) -> float:
        """What attention over other keys does not hide of a message, if the software overlaps them."""
        if not self.does.overlap_context:
            return message
        return overlapped(core, message, self.slowdown) - core
