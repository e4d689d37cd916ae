"""Seconds of the experts of a layer: routers, grouped products, and the exchange of tokens in slices.

A slice's products run beside two messages: the next slice on its way out, and the results of the one before. An
`optimization_barrier` ends the three together (`jaxpar.layers.experts.rounds`), so that each of these stages takes as
long as the longer of products and messages.

The fullest rank decides: the others wait for it in the exchange back. It has `LayerShape.imbalance` times the mean of
the rows, in as many rounds as its room needs; memory traffic and messages are those of the room, empty rows included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Annotated, Literal, NamedTuple

from jaxpar.config.bounds import SLICES
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.cost.grouped import Products, added_numbers
from jaxpar.cost.messages import Network, Ring
from jaxpar.cost.operations import Device
from jaxpar.cost.wire_messages import element_bytes
from jaxpar.cost.work import ACCUMULATED, Counted
from jaxpar.hardware.sources import derived
from jaxpar.layers.declaration.part import Matmuls, Part
from jaxpar.layers.experts.messages import messages_of, rows_for_ranks
from jaxpar.memory.layer_shape import LayerShape
from jaxpar.trace.clock import added

MOVED: Annotated[float, derived("read and written on the way in and on the way back")] = 4.0
"""Numbers read and written for each number of a row that experts have room for, on the way in and back together, where
slices are compared; backward as many."""
SORTED: Annotated[float, derived("read, written")] = 2.0
"""Numbers read and written for each number of a row in the order of experts, which is made from rows as they arrive.
The backward makes both this, as it is not kept, and the sum of gradients of copies."""
COMBINED: Annotated[float, derived("moved twice")] = 4.0
"""Numbers read and written for each number of a row on its way back, which is moved twice, as on the way to its expert;
the backward moves it as often."""
SMALL_MESSAGES: Annotated[int, derived("jaxpar/layers/experts/")] = 2
"""Messages beside those of the rows, forward and again backward, which hardly take more than their start: the weight,
expert and row of each assignment, and the number of rounds."""


class Work(NamedTuple):
    """Seconds of compute that messages run beside."""

    forward: float
    inward: float
    """Backward: gradients of the rows."""
    weights: float
    """Backward: gradients of the matrices."""


@dataclass(frozen=True)
class Experts:
    """The experts of one device that a microbatch's tokens are sent to."""

    shape: LayerShape
    """A layer that has experts."""
    device: Device
    network: Network
    asked_slices: int | Literal["auto"] = "auto"
    """The value of `parallel.experts.slices`."""
    own_rows: str = "auto"
    """The value of `parallel.experts.own_rows`."""
    loop: bool = False
    """Whether products run as a loop of plain XLA (`Products.loop`)."""

    @property
    def _experts(self) -> ExpertsConfig:
        assert self.shape.model.experts is not None, "a layer with experts"
        return self.shape.model.experts

    @property
    def groups(self) -> int:
        """Experts of a rank."""
        return self._experts.count // self.shape.expert

    @cached_property
    def times(self) -> Products:
        """Seconds of their products."""
        return Products(self.device, self.groups, self.shape.item_bytes, self.loop)

    @cached_property
    def sends(self) -> bool:
        """Whether tokens are sent to the ranks of their experts at all."""
        shape = self.shape
        return bool(messages_of(shape.exchange, self._experts, shape.capacity, shape.expert, shape.tensor))

    # ---- messages

    def message(self, slices: int = 1, wire: str | None = None) -> float:
        """Seconds of one way of a slice, of rows in the compute dtype or in a format on the wire."""
        shape = self.shape
        sent = shape.part_tokens / slices * shape.embed * element_bytes(wire, shape.item_bytes)
        if shape.exchange == "all_gather":
            return self._levels[0].gather(sent * shape.expert * shape.tensor)
        joined, *levels = self._levels
        sent *= rows_for_ranks(self._experts, shape.capacity, shape.expert)
        return joined.gather(sent * shape.tensor) + sum(level.exchange(sent) for level in levels)

    @cached_property
    def _ring(self) -> Ring:
        """The ranks that share the experts."""
        return self.network.ring(self.shape.expert, self.shape.context * self.shape.tensor)

    @cached_property
    def _levels(self) -> tuple[Ring, ...]:
        """The groups of a message: those of a gather, or the tensor ranks, and the levels of an exchange."""
        shape, network, ring = self.shape, self.network, self._ring
        if shape.exchange == "all_gather":
            ranks = shape.expert * shape.tensor
            return (network.group(ranks, max(1, min(ranks, network.per_host // shape.context))),)
        joined = network.ring(shape.tensor, 1)
        if shape.exchange == "hierarchical" and ring.hosts > 1:
            mates = shape.expert // ring.hosts
            return joined, network.group(mates, mates), network.group(ring.hosts, 1)
        return joined, ring

    def outward(self, slices: int = 1) -> float:
        """Seconds of a slice's tokens to their experts, in the format of `LayerShape.exchange_dtype`."""
        return self.message(slices, self.shape.exchange_dtype)

    @cached_property
    def slices(self) -> int:
        """Parts in which tokens are sent: as many as are asked for, or those that take least; local rows that are to go
        first take several."""
        if not self.sends:
            return 1
        if self.asked_slices != "auto":
            return self.asked_slices
        least = 2 if self.own_rows == "first" else 1
        allowed = [slices for slices in range(least, SLICES + 1) if self.shape.part_tokens % slices == 0]
        return min(allowed or [1], key=self._by_kernels.seconds)

    def local_first(self, slices: int) -> bool:
        """Whether a rank's local rows are computed apart, while the first slice is sent."""
        if slices == 1 or self.shape.tensor > 1 or self.shape.exchange == "all_gather":
            return False
        if self.own_rows != "auto":
            return self.own_rows == "first"
        return self._by_kernels.seconds(slices, first=True) < self._by_kernels.seconds(slices, first=False)

    @cached_property
    def _by_kernels(self) -> Experts:
        """The same with kernels, by whose times a run chooses."""
        return replace(self, loop=False) if self.loop else self

    def seconds(self, slices: int, first: bool | None = None) -> float:
        """Forward and backward. A message costs its start in addition to its bytes (alpha + beta n; FSMoE,
        arXiv:2501.10714), and each slice, and rows that go `first`, one more addition to the gradients of the
        weights. None is what `local_first` says."""
        first = self.local_first(slices) if first is None else first
        work, local = self._slice(slices, first), self._local(first)
        added = self.device.bytes_seconds(added_numbers(slices, first) * self.shape.item_bytes * self._weights)
        return slices * sum(work) + sum(local) + added + sum(self.waited(slices, first))

    @cached_property
    def _weights(self) -> int:
        """Numbers of the matrices of a rank's experts."""
        sides = (self.shape.matrix(one) for one in self.shape.layer.matrices if "experts" in one.axes)
        return self.groups * sum(k * n for k, n in sides)

    def _slice(self, slices: int, first: bool) -> Work:
        """A slice, if all experts get as many rows; of other ranks' rows if local ones are computed first."""
        return self._compute((1 - 1 / self.shape.expert if first else 1.0) / slices)

    def _local(self, first: bool) -> Work:
        """A rank's local rows, if they are computed first."""
        return self._compute(1 / self.shape.expert) if first else Work(0.0, 0.0, 0.0)

    @cached_property
    def _compute(self) -> Callable[[float], Work]:
        return cache(self._products)

    def _products(self, share: float) -> Work:
        """Products of a share of all rows, with what moves them."""
        shape, times, passed = self.shape, self.times, self.device.bytes_seconds
        rows = shape.tokens * self._experts.per_token * share
        moved = passed(MOVED * shape.item_bytes * shape.routed_rows * share * shape.embed)
        forward = inward = weights = 0.0
        for part in shape.layer.parts:
            for group in part.groups:
                item, of_gradient = shape.expert_item(group.name), shape.expert_gradient_item(group.name)
                for name in part.factors_of(*group.weights):
                    if "experts" in part.weights[name].axes:
                        k, n = shape.matrix(part.weights[name])
                        forward += times.matmul(rows, n, k, item) + passed(times.copied(rows, n, k))
                        inward += times.matmul(rows, k, n, item) + passed(times.copied(rows, k, n))
                        weights += times.gradient(rows, n, k, shape.item_bytes, of_gradient)
                        weights += passed(times.gradient_copied(rows, n, k))
        return Work(forward + moved, inward + moved, weights)

    @cached_property
    def _shared(self) -> Work:
        """Products of the shared experts, for all tokens."""
        shape, item = self.shape, self.shape.item_bytes
        weights = ((part, name) for part in shape.layer.parts for name in part.weights if name.startswith("shared_"))
        sides = [shape.matrix(part.weights[name]) for part, name in weights]
        times = lambda m, n, k: self.device.matmul(m, n, k, 1, item, item)
        return Work(
            sum(times(shape.tokens, n, k) for k, n in sides),
            sum(times(shape.tokens, k, n) for k, n in sides),
            sum(times(k, n, shape.tokens) for k, n in sides),
        )

    def waited(self, slices: int, first: bool) -> tuple[float, float]:
        """Seconds that the messages add to what is computed, forward and backward.

        Forward, the first slice is sent beside the rank's local rows if they go first, or beside nothing, and the last
        one returns beside the shared experts. Backward, gradients of the results begin beside those of the shared
        experts' rows (XLA computes those of their matrices elsewhere), and the last gradients of tokens return beside
        those of the matrices.
        """
        send, out = self.message(slices), self.outward(slices)
        work, local, shared = self._slice(slices, first), self._local(first), self._shared
        adds = lambda compute, messages: added(messages, compute, self.network.model.overlap_slowdown)
        between = lambda compute, to: (
            adds(compute, to) + adds(compute, send) + (slices - 2) * adds(compute, to + send) if slices > 1 else 0.0
        )
        forward = adds(local.forward, out) + between(work.forward, out) + adds(shared.forward, send)
        last = adds(work.weights + local.inward + local.weights, send)
        return forward, adds(shared.inward, send) + between(work.inward + work.weights, send) + last

    # ---- a step's exchange

    @property
    def _start(self) -> float:
        """Seconds of the small messages of one way, where there are any."""
        return SMALL_MESSAGES * (self._ring.start + self._ring.latency) if self.sends else 0.0

    @cached_property
    def _exposed_once(self) -> tuple[float, float]:
        """`waited` of the slices that are chosen."""
        return self.waited(self.slices, self.local_first(self.slices))

    @cached_property
    def exposed(self) -> tuple[float, float]:
        """Seconds of the messages that nothing is computed beside, forward and backward. Rounds after the first hide
        nothing."""
        start, send, more = self._start, self.message(), self.shape.rounds - 1
        forward, backward = self._exposed_once
        return forward + start + more * (self.outward() + send + start), backward + start + more * (2 * send + start)

    @cached_property
    def hidden(self) -> tuple[float, float]:
        """Seconds of the messages that something is computed beside, forward and backward."""
        to, send = self.outward(self.slices), self.message(self.slices)
        forward, backward = self._exposed_once
        return max(0.0, self.slices * (to + send) - forward), max(0.0, self.slices * 2 * send - backward)

    @cached_property
    def again(self) -> float:
        """Seconds that a backward which sends tokens to their experts again waits for them. Nothing ties them to
        products: XLA drops a barrier of which one result is used. Those of the slice that it begins with, and of the
        next, arrive before there are products."""
        start, more = self._start / 2, self.shape.rounds - 1
        return min(2, self.slices) * self.outward(self.slices) + start + more * (self.outward() + start)

    @cached_property
    def outward_share(self) -> float:
        """Share of the way to the experts in the messages forward; 0 where nothing is sent."""
        return self.outward() / (self.outward() + self.message()) if self.sends else 0.0

    # ---- groups of matmuls

    @property
    def rows(self) -> float:
        """Rows that the fullest rank multiplies."""
        return float(self.shape.tokens * self._experts.per_token) * self.shape.fullest

    @cached_property
    def row_bytes(self) -> float:
        """Bytes of all rows of the room, of all rounds."""
        return float(self.shape.item_bytes * self.shape.rounds * self.shape.routed_rows * self.shape.embed)

    def counted(self, part: Part, group: Matmuls) -> Counted:
        """A group whose rows each meet one matrix of many, slice by slice; gradients are added up over slices. Casts to
        FP8 are as many passes as in dense matmuls, over rows of the room and all matrices."""
        shape, slices, times = self.shape, self.slices, self.times
        sides = [(n, k) for k, n in (shape.matrix(part.weights[name]) for name in group.weights)]
        rows, item = self.rows / slices, shape.expert_item(group.name)
        of_gradient = shape.expert_gradient_item(group.name)
        forward = slices * sum(times.matmul(rows, n, k, item) for n, k in sides)
        inward = slices * sum(times.matmul(rows, k, n, item) for n, k in sides)
        weight = slices * sum(times.gradient(rows, n, k, ACCUMULATED, of_gradient) for n, k in sides)
        numbers = added_numbers(slices, self.local_first(slices)) * self.groups * sum(k * n for n, k in sides)
        weight += self.device.bytes_seconds(numbers * shape.item_bytes)
        moved = slices * sum(times.copied(rows, n, k) for n, k in sides)
        back = slices * sum(times.copied(rows, k, n) + times.gradient_copied(rows, n, k) for n, k in sides)
        if group.name in shape.quantization.groups:
            room, wide = float(shape.rounds * shape.routed_rows), sum(n for n, _ in sides)
            moved, back = moved + 4.0 * sides[0][1] * (room + self.groups * wide), back + 4.0 * room * wide
        if not group.inward:
            moved += (SORTED + COMBINED) * self.row_bytes
            back += (2 * SORTED + COMBINED) * self.row_bytes
        return Counted(forward, inward, weight, moved, back)
