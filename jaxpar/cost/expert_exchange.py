"""Seconds of a layer's experts with the exchange of their tokens, in slices.

A slice's products run beside two messages: the next slice on its way out, and the results of the one before. An
`optimization_barrier` ends the three together (`jaxpar.layers.experts.rounds`), so that each of these stages takes as
long as the longer of products and messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxpar.config.bounds import SLICES
from jaxpar.cost.grouped import Products
from jaxpar.cost.messages import Network, overlapped
from jaxpar.cost.operations import Device
from jaxpar.cost.wire_messages import element_bytes
from jaxpar.layers.experts.messages import messages_of, rows_for_ranks
from jaxpar.memory.layer_shape import LayerShape

MOVED = 4.0
"""Numbers read and written for each number of a row that experts have room for, on the way in and back together;
backward as many."""
ADDED = 3.0
"""Numbers read and written to add a slice's gradient of a weight to another's."""


OWN_ADDED = 1.0
"""The same of a rank's own rows: the pass that adds the slices' gradients reads one more."""


def added_numbers(slices: int, own_first: bool) -> float:
    """Numbers read and written, for each weight, to add the gradients of all parts in which rows are multiplied."""
    return ADDED * (slices - 1) + OWN_ADDED * own_first


class Work(NamedTuple):
    """Seconds of compute that messages run beside."""

    forward: float
    inward: float
    """Backward: gradients of the rows."""
    weights: float
    """Backward: gradients of the matrices."""

    @property
    def backward(self) -> float:
        """All of it."""
        return self.inward + self.weights


@dataclass(frozen=True)
class ExpertExchange:
    """The experts of one device that a microbatch's tokens are sent to."""

    shape: LayerShape
    """Of a layer that has experts."""
    own_rows: str = "auto"
    """As `parallel.experts.own_rows`."""
    loop: bool = False
    """Whether products run as a loop of plain XLA (`Products.loop`)."""

    def own_first(self, device: Device, network: Network, slices: int) -> bool:
        """Whether a rank's own rows are computed apart, while the first slice is sent."""
        if slices == 1 or self.shape.tensor > 1 or self.shape.exchange == "all_gather":
            return False
        if self.own_rows != "auto":
            return self.own_rows == "first"
        return self._seconds(device, network, slices, True) < self._seconds(device, network, slices, False)

    def best(self, device: Device, network: Network, asked: int | Literal["auto"] = "auto") -> int:
        """Slices: as many as are asked for, or those that take least; own rows that are to go first take several."""
        if asked != "auto":
            return asked
        tokens, least = self.shape.part_tokens, 2 if self.own_rows == "first" else 1
        allowed = [number for number in range(least, SLICES + 1) if tokens % number == 0]
        return min(allowed or [1], key=lambda number: self.seconds(device, network, number))

    def seconds(self, device: Device, network: Network, slices: int, first: bool | None = None) -> float:
        """Forward and backward. A message costs its start in addition to its bytes (alpha + beta n; FSMoE,
        arXiv:2501.10714), and each slice, and rows that go `first`, one more addition to the gradients of the
        weights. None is what `own_first` says."""
        return self._seconds(
            device, network, slices, self.own_first(device, network, slices) if first is None else first
        )

    def _seconds(self, device: Device, network: Network, slices: int, first: bool) -> float:
        work, own = self.products(device, slices, first), self.own_products(device, first)
        added = device.bytes_seconds(added_numbers(slices, first) * self.shape.item_bytes * self._weights)
        compute = slices * (work.forward + work.backward) + own.forward + own.backward
        return compute + added + sum(self._exposed(device, network, slices, first))

    def exposed(self, device: Device, network: Network, slices: int) -> tuple[float, float]:
        """Seconds that the messages add to what is computed, forward and backward.

        Forward, the first slice is sent beside the rank's own rows if they go first, or beside nothing, and the last
        one returns beside the shared experts. Backward, gradients of the results begin beside those of the shared
        experts' rows (XLA computes those of their matrices elsewhere), and the last gradients of tokens return beside
        those of the matrices.
        """
        return self._exposed(device, network, slices, self.own_first(device, network, slices))

    def _exposed(self, device: Device, network: Network, slices: int, first: bool) -> tuple[float, float]:
        send, work, shared = self.message(network, slices), self.products(device, slices, first), self._shared(device)
        own = self.own_products(device, first)
        out = self.outward(network, slices)
        adds = lambda compute, messages: overlapped(compute, messages, network.model.overlap_slowdown) - compute
        between = lambda compute, to: (
            adds(compute, to) + adds(compute, send) + (slices - 2) * adds(compute, to + send) if slices > 1 else 0.0
        )
        forward = adds(own.forward, out) + between(work.forward, out) + adds(shared.forward, send)
        last = adds(work.weights + own.backward, send)
        return forward, adds(shared.inward, send) + between(work.backward, send) + last

    def again(self, network: Network, slices: int) -> float:
        """Seconds that the backward waits for rows that it sends again, which nothing ties to products: XLA drops a
        barrier of which one result is used. Those of the slice that it begins with, and of the next, arrive before
        there are products."""
        return min(2, slices) * self.outward(network, slices)

    def outward(self, network: Network, slices: int = 1) -> float:
        """Seconds of a slice's tokens to their experts, in the format of `LayerShape.exchange_dtype`."""
        return self.message(network, slices, self.shape.exchange_dtype)

    def message(self, network: Network, slices: int = 1, wire: str | None = None) -> float:
        """Seconds of one way of a slice, of rows in the compute dtype or in a format on the wire."""
        shape, experts = self.shape, self.shape.model.experts
        assert experts is not None, "a layer with experts"
        own = shape.part_tokens / slices * shape.embed * element_bytes(wire, shape.item_bytes)
        ring = network.ring(shape.expert, shape.context * shape.tensor)
        rows = rows_for_ranks(experts, shape.capacity, shape.expert)
        if shape.exchange == "all_gather":
            ranks = shape.expert * shape.tensor
            per_host = max(1, min(ranks, network.per_host // shape.context))
            return network.group(ranks, per_host).gather(own * ranks)
        joined = network.ring(shape.tensor, 1).gather(own * rows * shape.tensor)
        if shape.exchange == "hierarchical" and ring.hosts > 1:
            mates = shape.expert // ring.hosts
            levels = network.group(mates, mates), network.group(ring.hosts, 1)
            return joined + sum(level.exchange(own * rows) for level in levels)
        return joined + ring.exchange(own * rows)

    @property
    def _matrices(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the matrices of an expert."""
        return [self.shape.matrix(spec) for spec in self.shape.layer.matrices if "experts" in spec.axes]

    @property
    def _products(self) -> list[tuple[int, int, int, int]]:
        """The same with the bytes of a number of what is multiplied: for outputs and gradients of rows, and for
        gradients of matrices."""
        shape = self.shape
        return [
            (*shape.matrix(part.weights[name]), shape.expert_item(group.name), shape.expert_gradient_item(group.name))
            for part in self.shape.layer.parts
            for group in part.groups
            for name in part.factors_of(*group.weights)
            if "experts" in part.weights[name].axes
        ]

    @property
    def _groups(self) -> int:
        experts = self.shape.model.experts
        assert experts is not None, "a layer with experts"
        return experts.count // self.shape.expert

    @property
    def _weights(self) -> int:
        return self._groups * sum(k * n for k, n in self._matrices)

    def products(self, device: Device, slices: int, first: bool = False) -> Work:
        """Of a slice, if all experts get as many rows, with what moves them; of other ranks' rows if own ones are
        computed first."""
        others = 1 - 1 / self.shape.expert if first else 1.0
        return self._of_rows(device, others / slices)

    def own_products(self, device: Device, first: bool) -> Work:
        """Of a rank's own rows, if they are computed first."""
        return self._of_rows(device, 1 / self.shape.expert) if first else Work(0.0, 0.0, 0.0)

    def _of_rows(self, device: Device, share: float) -> Work:
        """Of a share of all rows."""
        shape, item = self.shape, self.shape.item_bytes
        times = Products(device, self._groups, item, self.loop)
        experts = shape.model.experts
        assert experts is not None, "a layer with experts"
        rows = shape.tokens * experts.per_token * share
        moved = device.bytes_seconds(MOVED * item * shape.routed_rows * share * shape.embed)
        forward = sum(times.matmul(rows, n, k, own) for k, n, own, _ in self._products)
        inward = sum(times.matmul(rows, k, n, own) for k, n, own, _ in self._products)
        weights = sum(times.gradient(rows, n, k, item, own) for k, n, _, own in self._products)
        return Work(forward + moved, inward + moved, weights)

    def _shared(self, device: Device) -> Work:
        """Of the shared experts, for all tokens."""
        shape, item = self.shape, self.shape.item_bytes
        sides = [
            shape.matrix(part.weights[name])
            for part in shape.layer.parts
            for name in part.weights
            if name.startswith("shared_")
        ]
        times = lambda m, n, k: device.matmul(m, n, k, 1, item, item)
        return Work(
            sum(times(shape.tokens, n, k) for k, n in sides),
            sum(times(shape.tokens, k, n) for k, n in sides),
            sum(times(k, n, shape.tokens) for k, n in sides),
        )


def sends(shape: LayerShape) -> bool:
    """Whether tokens of a layer are sent to the ranks of their experts at all."""
    experts = shape.model.experts
    return experts is not None and bool(
        messages_of(shape.exchange, experts, shape.capacity, shape.expert, shape.tensor)
    )
