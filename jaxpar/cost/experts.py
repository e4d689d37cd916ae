"""Seconds of the experts of a layer: routers, grouped products, and the exchange of tokens.

The fullest rank decides: the others wait for it in the exchange back. It has `LayerShape.imbalance` times the mean of
the rows, in as many rounds as its room needs; memory traffic and messages are those of the room, empty rows included.
"""

from __future__ import annotations

from functools import cached_property

from jaxpar.cost.grouped import grouped_gradient, grouped_matmul
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.messages import Network, Ring
from jaxpar.cost.operations import Device
from jaxpar.cost.wire_messages import element_bytes
from jaxpar.layers.declaration.part import Matmuls, Part
from jaxpar.layers.experts.messages import Message, messages_of

COMBINED = 4.0
"""Numbers read and written for each number of a row on its way back, which is moved twice, as on the way to its expert;
the backward moves it as often."""
ROUTED = 8.0
"""Numbers of 32 bits read and written for each token and expert, forward: softmax, choice, sums over the batch."""
ROUTED_PER_CHOICE = 4.0
"""The same for each token, expert and choice: two arrays of ones at the choices, written and read."""
SMALL_MESSAGES = 1
"""Messages beside those of the rows, which hardly take more than their start: the weight, expert and row of each
assignment."""


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

    @property
    def rows(self) -> float:
        """Rows that the fullest rank multiplies."""
        experts = self.shape.model.experts
        return 0.0 if experts is None else float(self.shape.tokens * experts.per_token) * self.shape.fullest

    def forward(self, n: int, k: int) -> float:
        """Products with the matrices [k, n] of all experts."""
        return grouped_matmul(self.device, self.rows, self.groups, n, k, self.case.item)

    def gradients(self, n: int, k: int, accumulated: float) -> tuple[float, float]:
        """Gradients of rows, and of the matrices, which take `accumulated` bytes a number."""
        inward = grouped_matmul(self.device, self.rows, self.groups, k, n, self.case.item)
        return inward, grouped_gradient(self.device, self.rows, self.groups, n, k, accumulated, self.case.item)

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
    def exchange(self) -> float:
        """Seconds of the messages of one way, in all rounds: of results, and of gradients in both directions."""
        return self.shape.rounds * sum(self._seconds(one, self.case.item) for one in self._messages)

    @cached_property
    def exchange_out(self) -> float:
        """Seconds of the messages of tokens to their experts, in all rounds."""
        item = element_bytes(self.shape.exchange_wire, self.case.item)
        return self.shape.rounds * sum(self._seconds(one, item) for one in self._messages)

    @property
    def _messages(self) -> tuple[Message, ...]:
        shape, experts = self.shape, self.shape.model.experts
        if experts is None:
            return ()
        return messages_of(shape.exchange, experts, shape.capacity, shape.expert, shape.tensor)

    def _seconds(self, message: Message, item: float) -> float:
        ring = self._ring(message)
        whole = message.rows * self.shape.part_tokens * self.case.embed * item
        moved = ring.exchange(whole) if message.kind == "exchange" else ring.gather(whole)
        return moved + SMALL_MESSAGES * (ring.start + ring.latency)

    def _ring(self, message: Message) -> Ring:
        """The ranks of a message; those of `expert` are apart by all context and tensor ranks."""
        shape = self.shape
        if message.axes == ("tensor",):
            return self.network.ring(message.ranks, 1)
        if message.axes == ("expert",):
            return self.network.ring(message.ranks, shape.context * shape.tensor)
        return self.network.group(message.ranks, max(1, min(message.ranks, self.network.per_host // shape.context)))
