"""Messages of tensor and context ranks in a layer."""

from __future__ import annotations

from collections.abc import Sequence

from jaxpar.attention.context import neighbours
from jaxpar.attention.ulysses import repeats
from jaxpar.config.counting import head_dim, value_dim
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.cost.messages import Network, interleaved, overlapped


class LayerMessages:
    """The seconds that are not hidden of what tensor and context ranks send in a layer."""

    def __init__(self, case: LayerCase, network: Network, does: Mechanisms):
        self.case, self.does = case, does
        self.slowdown = network.model.overlap_slowdown
        self.ranks, self.heads = case.shape.context, case.shape.model.heads
        self.widths = head_dim(case.shape.model) + value_dim(case.shape.model)
        """Of a key and a value, or of a query and its output."""
        ring = network.ring(case.tensor, 1)
        whole = float(case.tokens * case.embed * case.item)
        self.parallel = case.sequence_parallel
        self.half = ring.gather(whole) if case.tensor > 1 else 0.0
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

    def gather(self, matmul: float, width: float) -> float:
        """Before a matmul that is split by columns, of inputs of a `width` in those of the residual stream: nothing
        without sequence parallelism."""
        return self._exposed(matmul, width * self.half) if self.parallel else 0.0

    def scatter(self, matmul: float) -> float:
        """After a matmul that is split by rows: the sum over the ranks."""
        return self._exposed(matmul, self.half if self.parallel else self.full)

    def backward(self, groups: Sequence[tuple[tuple[bool, float], tuple[float, float]]]) -> float:
        """Of the backward of groups of matmuls: ((inward, width), (gradient of the input, of the weights)), where the
        width is that of what ranks exchange in those of the residual stream.

        Inward, split by columns: the gradient of the input is summed, beside the gradient of the weight where the
        software can; with sequence parallelism the input is gathered again beside the gradient of the input. Outward,
        split by rows: with sequence parallelism the gradient is gathered first.
        """
        if self.case.tensor == 1:
            return 0.0
        exposed = 0.0
        for (columns, width), (inward, weight) in groups:
            half, full = width * self.half, width * self.full
            if not self.parallel:
                exposed += self._beside(weight, full) if columns else 0.0
            elif columns:
                exposed += self._beside(inward, half, always=True) + self._beside(weight, half)
            else:
                exposed += self._exposed(inward, half)
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
