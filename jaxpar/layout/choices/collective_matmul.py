"""Seconds of a group of a layer's matmuls with the exchange of the sequence next to it, plain and as a ring."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.cost.messages import Network, Ring
from jaxpar.cost.operations import Device
from jaxpar.trace.clock import added


@dataclass(frozen=True)
class CollectiveMatmul:
    """A group of matmuls on one device, of the tokens of all tensor ranks. `seconds` are forward and backward."""

    tokens: int
    """Multiplied at a time."""
    between: int
    """Numbers per token that are gathered before the matmuls, or scattered after them: those of the residual stream."""
    inside: int
    """Numbers per token on the other side, as the device has them."""
    inward: bool
    item: int
    """Bytes of a number."""
    operand: int
    """Bytes of a number that is multiplied, and that is gathered for it: fewer in FP8."""
    tensor: int
    """The number of tensor ranks."""

    def plain(self, device: Device, network: Network) -> float:
        """Seconds of whole matmuls and collectives, of which only the second gather of an input runs beside dgrad."""
        message = lambda item: network.ring(self.tensor, 1).gather(float(self.tokens * self.between * item))
        gather, scatter = message(self.operand), message(self.item)
        product, dgrad, wgrad = self._matmuls(device, self.tokens)
        if not self.inward:
            return product + dgrad + wgrad + gather + scatter
        hidden = added(gather, dgrad, network.model.overlap_slowdown)
        return product + gather + dgrad + hidden + wgrad + scatter

    def ring(self, device: Device, network: Network, chunks: int) -> float:
        """Seconds of rings in `chunks` chunks of a rank's part; the end of a ring overlaps with nothing."""
        pieces = self.tensor * chunks
        tokens, sends = self.tokens // pieces, pieces - chunks
        ring: Ring = network.ring(self.tensor, 1)
        product, dgrad, wgrad = self._matmuls(device, tokens)

        def beside(work: float, item: int) -> float:
            send = ring.shift(float(tokens * self.between * item))
            return sends * added(send, work, network.model.overlap_slowdown) + (sends + chunks) * work

        if self.inward:
            matmuls = beside(product, self.operand) + beside(dgrad, self.operand) + beside(wgrad, self.item)
        else:
            matmuls = beside(product, self.item) + beside(dgrad + wgrad, self.operand)
        return matmuls + device.bytes_seconds(self._copied(chunks))

    def _matmuls(self, device: Device, tokens: int) -> tuple[float, float, float]:
        """Seconds of `tokens` tokens: the product, the gradient of the input, and that of the weights in float32."""
        n, k = (self.inside, self.between) if self.inward else (self.between, self.inside)
        return (
            device.matmul(tokens, n, k, 1, self.item, self.operand),
            device.matmul(tokens, k, n, 1, self.item, self.operand),
            device.matmul(n, k, tokens, 1, 8, self.operand),
        )

    def _copied(self, chunks: int) -> float:
        """Bytes that only a ring copies: chunks in and out of whole arrays, and in one chunk the sums that arrive."""
        copies = 2.0 * (2 if self.inward else 3) * self.tokens * self.inside
        added = 3.0 * self.tokens * self.between if not self.inward and chunks == 1 else 0.0
        return self.item * (copies + added)
