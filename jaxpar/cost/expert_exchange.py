"""Seconds of a layer's experts with the exchange of their tokens, in slices."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.cost.messages import Network
from jaxpar.cost.operations import Device


@dataclass(frozen=True)
class ExpertExchange:
    """The routed experts of one device, in one microbatch."""

    algorithm: str
    tokens: int
    """Of the device's own."""
    rows: float
    """Rows that are sent for each of them one way, those to itself included."""
    chosen: int
    """Experts of a token."""
    experts: int
    """Of the device."""
    embed: int
    width: int
    """Hidden width, of one tensor rank."""
    inward: int
    """Matrices into the hidden activation: two with a gate."""
    item: int
    """Bytes of a number."""
    expert: int
    tensor: int
    stride: int
    """Devices from one expert rank to the next."""

    def seconds(self, device: Device, network: Network, slices: int) -> float:
        """Forward and backward. A message costs its start in addition to its bytes (alpha + beta n; FSMoE,
        arXiv:2501.10714), and each slice one more addition to the gradients of the weights.

        The first slice is sent beside nothing, and the results of the last one return beside nothing.
        """
        send = self.message(network, slices)
        forward, backward = self._products(device, slices)
        added = device.bytes_seconds((slices - 1) * 3.0 * self.item * self._weights)
        pipeline = lambda work: 2 * send + max(slices * work, (2 * slices - 2) * send)
        return pipeline(forward) + pipeline(backward) + added

    def message(self, network: Network, slices: int = 1) -> float:
        """Seconds of one way of a slice."""
        own = self.tokens / slices * self.embed * self.item
        ring = network.ring(self.expert, self.stride, shared=False)
        if self.algorithm == "all_gather":
            ranks = self.expert * self.tensor
            per_host = max(1, min(ranks, network.per_host // (self.stride // self.tensor)))
            return network.group(ranks, per_host, shared=False).gather(own * ranks)
        joined = network.ring(self.tensor, 1).gather(own * self.rows * self.tensor)
        if self.algorithm == "hierarchical" and ring.hosts > 1:
            mates = self.expert // ring.hosts
            levels = network.group(mates, mates), network.group(ring.hosts, 1)
            return joined + sum(level.exchange(own * self.rows) for level in levels)
        return joined + ring.exchange(own * self.rows)

    @property
    def _weights(self) -> int:
        return self.experts * (self.inward + 1) * self.embed * self.width

    def _products(self, device: Device, slices: int) -> tuple[float, float]:
        """Of a slice, forward and backward, if all experts get as many rows."""
        rows = max(1, round(self.tokens * self.tensor * self.chosen / slices / self.experts))
        e, w = self.embed, self.width
        times = lambda m, n, k: device.matmul(m, n, k, self.experts, self.item, self.item)
        forward = self.inward * times(rows, w, e) + times(rows, e, w)
        dgrad = self.inward * times(rows, e, w) + times(rows, w, e)
        wgrad = (self.inward + 1) * times(e, w, rows)
        return forward, dgrad + wgrad
