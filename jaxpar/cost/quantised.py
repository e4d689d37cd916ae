"""What FP8 adds to a layer's dense matmuls: passes that quantise, scales, and how many bytes are sent in codes."""

from __future__ import annotations

from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.matmul_codes import FINDING, MAGNITUDE
from jaxpar.cost.messages import Network
from jaxpar.cost.operations import Device
from jaxpar.layers.declaration.part import Matmuls, Part


class QuantisedTimes:
    """The quantised matmuls of a layer, but those of routed experts."""

    def __init__(self, case: LayerCase, device: Device, network: Network):
        self.case, self.shape, self.device = case, case.shape, device
        self.over_all = network.ring(case.magnitude_ranks, 1)
        self.over_tensor = network.ring(case.tensor, 1)

    def operand(self, group: Matmuls) -> int:
        """Bytes of a number that a group multiplies."""
        codes = self.case.codes_of(group)
        if codes is None:
            return self.case.item
        return 1 if codes.multiplied else self.case.item

    def casts(self, part: Part, group: Matmuls) -> tuple[float, float]:
        """Bytes of the passes that make codes, forward and backward. Those that find the scale of an input count in the
        backward, because recomputation does not repeat them."""
        codes = self.case.codes_of(group)
        if codes is None:
            return 0.0, 0.0
        rows, own, passes = self.shape.rows_of(part, group), self._own_rows(part, group), codes.passes
        forward = backward = 0.0
        for n, k in self.shape.joined(part, group):
            forward += passes.input * own * k + passes.weight * n * k
            backward += passes.input_back * rows * k + passes.weight_back * n * k + passes.gradient * rows * n
            if codes.found:
                backward += FINDING * (own * k + rows * n + (0 if codes.once else n * k))
        return forward, backward

    def scales(self, part: Part, group: Matmuls) -> tuple[float, float]:
        """Seconds of the messages of largest magnitudes that a group waits for, forward and backward: one of all ranks
        for the input, and one for the gradients. Matrices that are quantised with each use have one of their own, over
        the tensor ranks."""
        codes = self.case.codes_of(group)
        if codes is None or not codes.found:
            return 0.0, 0.0
        matrices = MAGNITUDE * sum(not part.is_factored(name) for name in group.weights)
        of_weights = 0.0 if codes.once else self.over_tensor.reduce(matrices)
        return self.over_all.reduce(MAGNITUDE) + of_weights, self.over_all.reduce(matrices)

    def sent_bytes(self, part: Part, group: Matmuls) -> float:
        """Bytes of a number that tensor ranks gather for a group: codes, where they are quantised before. Low-rank
        factors multiply what is gathered beside them, and the gradient of a sum with theirs is one message."""
        codes, item = self.case.codes_of(group), float(self.case.item)
        if codes is None or not codes.sends:
            return item
        factors = any(self.shape.factors(part, name) for name in group.weights)
        if group.inward:
            return codes.sent_bytes + (item if factors else 0.0)
        return item if factors or codes.tile is not None else codes.sent_bytes

    def _own_rows(self, part: Part, group: Matmuls) -> float:
        """Rows that this rank quantises of the input of a group: before they are gathered, where they are."""
        rows = float(self.shape.rows_of(part, group))
        codes = self.case.codes_of(group)
        gathers = group.inward and not group.between and self.case.tensor > 1
        return rows / self.case.tensor if gathers and codes is not None and codes.sends else rows
