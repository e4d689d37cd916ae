"""Seconds of the experts of a layer: routers, grouped products, and the exchange of tokens.

The fullest rank decides: the others wait for it in the exchange back. It has `LayerShape.imbalance` times the mean of
the rows, in as many rounds as its room needs; memory traffic and messages are those of the room, empty rows included.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from jaxpar.cost.expert_exchange import ExpertExchange, added_numbers, sends
from jaxpar.cost.grouped import Products
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.messages import Network
from jaxpar.cost.operations import Device
from jaxpar.layers.declaration.part import Matmuls, Part

SORTED = 2.0
"""Numbers read and written for each number of a row in the order of experts, which is made from rows as they arrive.
The backward makes both this, as it is not kept, and the sum of gradients of copies."""
COMBINED = 4.0
"""Numbers read and written for each number of a row on its way back, which is moved twice, as on the way to its expert;
the backward moves it as often."""
ROUTED = 8.0
"""Numbers of 32 bits read and written for each token and expert, forward: softmax, choice, sums over the batch."""
ROUTED_PER_CHOICE = 4.0
"""The same for each token, expert and choice: two arrays of ones at the choices, written and read."""
SMALL_MESSAGES = 2
"""Messages beside those of the rows, forward and again backward, which hardly take more than their start: the weight,
expert and row of each assignment, and the number of rounds."""


class ExpertTimes:
    """The operations of a layer's experts."""

    def __init__(self, case: LayerCase, device: Device, network: Network):
        self.case, self.shape, self.device, self.network = case, case.shape, device, network

    def of(self, part: Part, group: Matmuls) -> bool:
        """Whether a group of matmuls is the experts', each row of which meets one matrix of many."""
        return "experts" in part.weights[part.factors_of(group.weights[0])[0]].axes

    def routes(self, part: Part, group: Matmuls) -> bool:
        """Whether it is a router's, of the tokens between the blocks and in float32."""
        return "router" in part.weights[part.factors_of(group.weights[0])[0]].axes

    # ---- products

    @property
    def groups(self) -> int:
        """Experts of a rank."""
        experts = self.shape.model.experts
        return 0 if experts is None else experts.count // self.shape.expert

    @cached_property
    def times(self) -> Products:
        """Their products."""
        return Products(self.device, self.groups, self.case.item, self.case.expert_loop)

    @property
    def rows(self) -> float:
        """Rows that the fullest rank multiplies."""
        experts = self.shape.model.experts
        return 0.0 if experts is None else float(self.shape.tokens * experts.per_token) * self.shape.fullest

    def forward(self, n: int, k: int, group: str) -> float:
        """Products with the matrices [k, n] of all experts, slice by slice."""
        return self.slices * self.times.matmul(self.rows / self.slices, n, k, self.shape.expert_item(group))

    def gradients(self, n: int, k: int, group: str, accumulated: float) -> tuple[float, float]:
        """Gradients of rows, and of the matrices, which take `accumulated` bytes a number and are added up over
        slices."""
        rows, item = self.rows / self.slices, self.case.item
        inward = self.times.matmul(rows, k, n, self.shape.expert_item(group))
        weight = self.times.gradient(rows, n, k, accumulated, self.shape.expert_gradient_item(group))
        added = self.device.bytes_seconds(self.added_numbers * item * self.groups * k * n)
        return self.slices * inward, self.slices * weight + added

    def casts(self, group: str, sides: Sequence[tuple[int, int]]) -> tuple[float, float]:
        """Bytes of casts to FP8 and of their scales, forward and backward, of a group with one input and matrices of
        these outputs and inputs: as many passes as in dense matmuls, over rows of the room and all matrices."""
        if group not in self.shape.codes.groups:
            return 0.0, 0.0
        rows, wide = float(self.shape.rounds * self.shape.routed_rows), sum(n for n, _ in sides)
        return 4.0 * sides[0][1] * (rows + self.groups * wide), 4.0 * rows * wide

    # ---- routers

    def router(self, n: int, k: int) -> float:
        """The logits, in float32, and the choice."""
        return self.device.matmul(self.shape.part_tokens, n, k, 1, 4, 4)

    def router_gradients(self, n: int, k: int) -> tuple[float, float]:
        """Gradients of the tokens and of the router."""
        tokens = self.shape.part_tokens
        return self.device.matmul(tokens, k, n, 1, 4, 4), self.device.matmul(k, n, tokens, 1, 4, 4)

    @cached_property
    def choice_bytes(self) -> float:
        """Bytes that the choice of experts moves, forward; the backward moves as many."""
        experts = self.shape.model.experts
        if experts is None:
            return 0.0
        each = ROUTED + ROUTED_PER_CHOICE * experts.per_token
        return 4.0 * each * self.shape.part_tokens * experts.count

    # ---- rows and messages

    @cached_property
    def combined_bytes(self) -> float:
        """Bytes moved in memory on the way back, forward; the backward moves as many."""
        return COMBINED * self.case.item * self.shape.rounds * self.shape.routed_rows * self.case.embed

    @cached_property
    def sorted_bytes(self) -> float:
        """Bytes moved in memory to bring rows into the order of experts, forward; the backward moves twice as many."""
        return SORTED * self.case.item * self.shape.rounds * self.shape.routed_rows * self.case.embed

    @cached_property
    def slices(self) -> int:
        """Parts in which tokens are sent."""
        if not sends(self.shape):
            return 1
        return self.exchange.best(self.device, self.network, self.case.slices)

    @cached_property
    def added_numbers(self) -> float:
        """Numbers read and written for each weight, to add the gradients of slices and of a rank's own rows."""
        if self.slices == 1:
            return 0.0
        return added_numbers(self.slices, self.exchange.own_first(self.device, self.network, self.slices))

    @cached_property
    def exchange(self) -> ExpertExchange:
        """What slices are exchanged, and how."""
        return ExpertExchange(self.shape, self.case.own_rows, self.case.expert_loop)

    @cached_property
    def exposed(self) -> tuple[float, float]:
        """Seconds of the messages that nothing is computed beside, forward and backward. Rounds after the first hide
        nothing."""
        if not sends(self.shape):
            return 0.0, 0.0
        exchange, shape = self.exchange, self.shape
        start = SMALL_MESSAGES * self._start
        send = exchange.message(self.network)
        once = exchange.outward(self.network) + send + start, 2 * send + start
        forward, backward = exchange.exposed(self.device, self.network, self.slices)
        more = shape.rounds - 1
        return forward + start + more * once[0], backward + start + more * once[1]

    @property
    def message(self) -> float:
        """Seconds of a message of a slice."""
        return self.exchange.message(self.network, self.slices) if sends(self.shape) else 0.0

    @cached_property
    def again(self) -> float:
        """Seconds that a backward which sends tokens to their experts again waits for them."""
        if not sends(self.shape):
            return self.exposed[0] * self.outward
        exchange = self.exchange
        start, more = SMALL_MESSAGES * self._start / 2, self.shape.rounds - 1
        return exchange.again(self.network, self.slices) + start + more * (exchange.outward(self.network) + start)

    @cached_property
    def hidden(self) -> tuple[float, float]:
        """Seconds of the messages that something is computed beside, forward and backward."""
        if not sends(self.shape):
            return 0.0, 0.0
        exchange = self.exchange
        to, send = exchange.outward(self.network, self.slices), exchange.message(self.network, self.slices)
        forward, backward = exchange.exposed(self.device, self.network, self.slices)
        return max(0.0, self.slices * (to + send) - forward), max(0.0, self.slices * 2 * send - backward)

    @cached_property
    def outward(self) -> float:
        """Share of the way to the experts in the messages forward."""
        if not sends(self.shape):
            return 0.5
        exchange = self.exchange
        out = exchange.outward(self.network)
        return out / (out + exchange.message(self.network))

    @property
    def _start(self) -> float:
        """Seconds of a message without bytes among the ranks of the experts."""
        ring = self.network.ring(self.shape.expert, self.shape.context * self.shape.tensor)
        return ring.start + ring.latency
