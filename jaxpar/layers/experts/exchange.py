"""Exchange of tokens with the ranks of their experts, and of results: one round, of one slice of a rank's tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import ExpertLayout
from jaxpar.layers.experts.messages import room_of, row_room
from jaxpar.layers.experts.rows import (
    NONE,
    Lists,
    Places,
    Window,
    collect,
    lists_by_rank,
    places_of_list,
    sort_by_expert,
    sort_tokens_by_expert,
    spread,
    without_list,
)
from jaxpar.mesh.collectives import (
    exchange_tokens,
    gather_sequence,
    gather_tokens,
    scatter_sequence,
    scatter_tokens,
)
from jaxpar.mesh.quantized.tokens import exchange_tokens_by_node, sent


class Exchange(ABC):
    """An algorithm, for a slice of a rank's tokens."""

    room: int
    """Assignments of a list in the first round."""
    rows: int
    """Rows of a list in any round, and assignments in later ones."""
    experts: int
    """Experts of a rank, or the kinds of rows of these."""
    copies: int = 1
    """Ranks that handle the rows of a token alike."""

    def __init__(self, experts: ExpertsConfig, layout: ExpertLayout):
        self.ranks = lax.axis_size("expert")
        self.experts = experts.count // self.ranks
        self.dtype = layout.sent_dtype if self.ranks * lax.axis_size("tensor") > 1 else None

    @abstractmethod
    def lists(self, indices: Int[Array, "tokens chosen"], valid: Bool[Array, " tokens"]) -> Lists:
        """The assignments that a rank sorts."""

    @abstractmethod
    def announce(self, window: Window, gates: Float[Array, "slices tokens chosen"]) -> Places:
        """Order and weights with which the rows that this rank receives are multiplied, for each slice of a stack."""

    def apart(self, window: Window, gates: Float[Array, "slices tokens chosen"]) -> tuple[Window, Places | None]:
        """The part of a stack of slices that is sent, and where this rank multiplies its tokens of all slices for its
        experts; None where these are sent like the others."""
        del gates
        return window, None

    @abstractmethod
    def dispatch(self, window: Window, x: Float[Array, "tokens embed"]) -> Float[Array, "rows embed"]:
        """The rows that this rank receives."""

    @abstractmethod
    def combine(self, window: Window, results: Float[Array, "rows embed"]) -> Float[Array, "tokens embed"]:
        """Sum of each token's results, from the rows that each rank has received."""


class AllToAll(Exchange):
    """Each rank sends a token once to each rank that has some of its experts, and gets the sum of their results:
    forward and backward twice `exchange_tokens` of `expert * rows` rows, of which tensor ranks each send those of their
    tokens and then join them (`gather_sequence`). `PLACE_BYTES` go ahead with each assignment."""

    def __init__(self, experts: ExpertsConfig, tokens: int, layout: ExpertLayout):
        super().__init__(experts, layout)
        self.room = room_of(tokens * experts.per_token, self.ranks, layout.capacity)
        self.rows = row_room(tokens, self.room, experts, self.ranks, layout.capacity)
        node_devices = layout.node_devices if layout.exchange.name == "hierarchical" else None
        self.send = partial(exchange_tokens_by_node, node_devices=node_devices) if node_devices else exchange_tokens
        self.local_first = layout.own_first.name

    def lists(self, indices: Int[Array, "tokens chosen"], valid: Bool[Array, " tokens"]) -> Lists:
        """A list for each rank, of this rank's tokens."""
        return lists_by_rank(indices, valid, self.ranks, self.experts, self.room, self.rows)

    def announce(self, window: Window, gates: Float[Array, "slices tokens chosen"]) -> Places:
        """Facts that other ranks announce, in one message for all slices: of each slot its weight, and its expert and
        row as the bits of a number."""
        slices, slots = len(gates), window.assignments.shape[1] // self.ranks

        def announced(window: Window, gates: jax.Array) -> jax.Array:
            weights = spread(gates.reshape(-1, 1), window.assignments, window.slots)[:, 0]
            code = jnp.where(window.expert >= 0, window.expert * self.rows + window.row, NONE)
            return jnp.stack([weights, lax.bitcast_convert_type(code + _BITS_OF_ONE, jnp.float32)], axis=1)

        sent = jax.vmap(announced)(window, gates).reshape(slices, self.ranks, slots, 2).swapaxes(0, 1)
        came = self._joined(sent.reshape(self.ranks, -1)).reshape(-1, slices, slots, 2).swapaxes(0, 1)
        code = lax.bitcast_convert_type(came[..., 1], jnp.int32) - _BITS_OF_ONE
        expert, row = (jnp.where(code >= 0, value, NONE) for value in (code // self.rows, code % self.rows))
        sort = partial(sort_by_expert, rows=self.rows, each=self.experts, copies=min(gates.shape[2], self.experts))
        return jax.vmap(sort)(expert, row, came[..., 0])

    def apart(self, window: Window, gates: Float[Array, "slices tokens chosen"]) -> tuple[Window, Places | None]:
        """This rank's list, if it goes first."""
        if not self.local_first:
            return window, None
        rank = lax.axis_index("expert")
        hidden = jax.vmap(partial(without_list, index=rank, lists=self.ranks, rows=self.rows))(window)
        return hidden, places_of_list(window, gates, rank, self.ranks, self.rows, self.experts)

    def dispatch(self, window: Window, x: Float[Array, "tokens embed"]) -> Float[Array, "rows embed"]:
        """The rows of all ranks for the experts of this one."""
        return sent(self.dtype, lambda x, *places: self._joined(spread(x, *places)), x, window.tokens, window.back)

    def combine(self, window: Window, results: Float[Array, "rows embed"]) -> Float[Array, "tokens embed"]:
        """Each rank returns as many rows as it received."""
        returned = self.send(scatter_sequence(results[None])[0])
        return collect(returned, window.tokens, window.back)

    def _joined(self, rows: jax.Array) -> jax.Array:
        return gather_sequence(self.send(rows)[None])[0]


_BITS_OF_ONE = 0x3F800000
"""Bits of 1.0 in float32. Integers up to 2^30 that are added to them make ordinary numbers: nothing flushes them."""


class AllGather(Exchange):
    """Every rank sees all tokens of the expert and tensor ranks, computes those of its experts, and the results are
    summed: forward and backward a `gather_tokens` and a `scatter_tokens` of a rank's tokens."""

    def __init__(self, experts: ExpertsConfig, tokens: int, layout: ExpertLayout):
        super().__init__(experts, layout)
        self.copies = lax.axis_size("tensor")
        gathered = tokens * self.ranks * self.copies
        self.room = self.rows = room_of(gathered * experts.per_token, self.ranks, layout.capacity)

    def lists(self, indices: Int[Array, "tokens chosen"], valid: Bool[Array, " tokens"]) -> Lists:
        """One list, of all tokens for this rank's experts."""
        local = gather_tokens(indices) - lax.axis_index("expert") * self.experts
        here = gather_tokens(valid)[:, None] & (local >= 0) & (local < self.experts)
        return lists_by_rank(
            jnp.where(here, local, self.experts), here.any(axis=1), 1, self.experts, self.room, self.rows
        )

    def announce(self, window: Window, gates: Float[Array, "slices tokens chosen"]) -> Places:
        """Weights of the received rows, from those of all tokens."""
        gathered = gather_tokens(gates.swapaxes(0, 1)).swapaxes(0, 1)
        return jax.vmap(partial(sort_tokens_by_expert, each=self.experts))(window, gathered)

    def dispatch(self, window: Window, x: Float[Array, "tokens embed"]) -> Float[Array, "rows embed"]:
        """The tokens of all ranks."""
        del window
        return sent(self.dtype, gather_tokens, x)

    def combine(self, window: Window, results: Float[Array, "rows embed"]) -> Float[Array, "tokens embed"]:
        """Sums over the ranks of the experts."""
        del window
        return scatter_tokens(results)


EXCHANGES: dict[str, Callable[[ExpertsConfig, int, ExpertLayout], Exchange]] = {
    "all_to_all": AllToAll,
    "hierarchical": AllToAll,
    "all_gather": AllGather,
}
"""Exchanges by the name in a plan. `hierarchical` is `AllToAll` by `exchange_tokens_by_node`. JAX's
`ragged_all_to_all` is not used: its result has the varying type of its output buffer, so that a missing reduction would
not be noticed, it does not run on CPUs, and on GPUs it has crashed above 32 ranks."""
