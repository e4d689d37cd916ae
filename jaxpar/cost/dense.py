"""Seconds of a layer's dense matmuls, with what FP8 adds: passes that quantize, scales, and bytes that are sent."""

from __future__ import annotations

from typing import Annotated

from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.matmul_quantization import AMAX_READ, MAGNITUDE
from jaxpar.cost.messages import Network
from jaxpar.cost.operations import Device
from jaxpar.cost.work import ACCUMULATED, Counted
from jaxpar.hardware.sources import derived
from jaxpar.layers.declaration.part import Matmuls, Part

ROUTED: Annotated[float, derived("jaxpar/layers/experts/")] = 8.0
"""Numbers of 32 bits read and written for each token and expert, forward: softmax, choice, sums over the batch."""
ROUTED_PER_CHOICE: Annotated[float, derived("two arrays, each written and read")] = 4.0
"""The same for each token, expert and choice: two arrays of ones at the choices, written and read."""


class Dense:
    """The matmuls of a layer, but those of routed experts."""

    def __init__(self, case: LayerCase, device: Device, network: Network):
        self.case, self.shape, self.device = case, case.shape, device
        self.over_all = network.ring(case.magnitude_ranks, 1)
        self.over_tensor = network.ring(case.tensor, 1)

    def counted(self, part: Part, group: Matmuls) -> Counted:
        """A group: one matmul for its matrices concatenated, and two for each that is the product of two, of which the
        backward computes the first again."""
        shape, item, quantization = self.shape, self.case.item, self.case.quantization_of(group)
        rows, operand = shape.rows_of(part, group), 1 if quantization is not None and quantization.multiplied else item
        factored = [name for name in group.weights if part.is_factored(name)]
        pairs = [shape.matrix(part.weights[name]) for name in part.factors_of(*factored)]
        firsts = [shape.matrix(part.weights[part.factors_of(name)[0]]) for name in factored]
        sides = [(n, k, operand) for n, k in shape.joined(part, group)] + [(n, k, item) for k, n in pairs]
        times = lambda m, n, k, out, operand: self.device.matmul(m, n, k, 1, out, operand)
        again = sum(times(rows, n, k, item, item) for k, n in firsts)
        return Counted(
            sum(times(rows, n, k, item, operand) for n, k, operand in sides),
            again + sum(times(rows, k, n, item, operand) for n, k, operand in sides),
            sum(times(k, n, rows, ACCUMULATED, operand) for n, k, operand in sides),
            *self._casts(part, group),
            *self._scales(part, group),
            self._sent_bytes(part, group),
        )

    def low_rank(self, part: Part, group: Matmuls, name: str) -> Counted | None:
        """Products with the low-rank factors of a matrix, and the passes that add them, or backward the gradient of the
        input, to the others: two numbers are read, one written. None without factors."""
        sides = self.shape.factors(part, name)
        if not sides:
            return None
        rows, item, times = self.shape.rows_of(part, group), self.case.item, self.device.matmul
        return Counted(
            sum(times(rows, n, k, 1, item, item) for k, n in sides),
            sum(times(rows, k, n, 1, item, item) for k, n in sides),
            sum(times(k, n, rows, 1, ACCUMULATED, item) for k, n in sides),
            3.0 * item * rows * sides[-1][1],
            3.0 * item * rows * sides[0][0],
        )

    def router(self, part: Part, group: Matmuls) -> Counted:
        """The logits, of the tokens between the blocks and in float32, and the choice."""
        tokens, experts = self.shape.part_tokens, self.shape.model.experts
        assert experts is not None, "a layer with experts"
        times = lambda m, n, k: self.device.matmul(m, n, k, 1, 4, 4)
        sides = [(n, k) for k, n in (self.shape.matrix(part.weights[name]) for name in group.weights)]
        products = [(times(tokens, n, k), times(tokens, k, n), times(k, n, tokens)) for n, k in sides]
        chosen = 4.0 * (ROUTED + ROUTED_PER_CHOICE * experts.per_token) * tokens * experts.count
        forward, inward, weight = map(sum, zip(*products, strict=True))
        return Counted(forward, inward, weight, chosen, chosen)

    def _casts(self, part: Part, group: Matmuls) -> tuple[float, float]:
        """Bytes of the passes that quantize, forward and backward. Those that find the scale of an input count in the
        backward, because recomputation does not repeat them."""
        quantization = self.case.quantization_of(group)
        if quantization is None:
            return 0.0, 0.0
        rows, passes = self.shape.rows_of(part, group), quantization.passes
        gathers = group.inward and not group.between
        quantized = float(rows) / (self.case.tensor if gathers else 1)  # before they are gathered, where they are
        forward = backward = 0.0
        for n, k in self.shape.joined(part, group):
            forward += passes.input * quantized * k + passes.weight * n * k
            backward += passes.input_back * rows * k + passes.weight_back * n * k + passes.gradient * rows * n
            if quantization.measures_amax:
                backward += AMAX_READ * (quantized * k + rows * n + (0 if quantization.once else n * k))
        return forward, backward

    def _scales(self, part: Part, group: Matmuls) -> tuple[float, float]:
        """Seconds of the messages of largest magnitudes, forward and backward: one of all ranks for the input, and one
        for the gradients. Matrices that are quantized with each use have one of their own, over the tensor ranks."""
        quantization = self.case.quantization_of(group)
        if quantization is None or not quantization.measures_amax:
            return 0.0, 0.0
        matrices = MAGNITUDE * sum(not part.is_factored(name) for name in group.weights)
        of_weights = 0.0 if quantization.once else self.over_tensor.reduce(matrices)
        return self.over_all.reduce(MAGNITUDE) + of_weights, self.over_all.reduce(matrices)

    def _sent_bytes(self, part: Part, group: Matmuls) -> float:
        """Bytes of a number that tensor ranks gather: a code, where they are quantized before. Low-rank factors
        multiply what is gathered beside them, and the gradient of a sum with theirs is one message."""
        quantization, item = self.case.quantization_of(group), float(self.case.item)
        if quantization is None:
            return item
        factors = any(self.shape.factors(part, name) for name in group.weights)
        if group.inward:
            return quantization.sent_bytes + (item if factors else 0.0)
        return item if factors or quantization.tile is not None else quantization.sent_bytes
