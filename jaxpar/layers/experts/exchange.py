"""How tokens reach the ranks of their experts and how results return: one round, of one slice of a rank's tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import ExpertLayout
from jaxpar.layers.experts.messages import room_of, row_room
from jaxpar.layers.experts.rows import NONE, Lists, Places, Window, by_expert, by_rank, collect, spread
from jaxpar.mesh.collectives import (
    exchange_tokens,
    gather_sequence,
    gather_tokens,
    scatter_sequence,
    scatter_tokens,
)
from jaxpar.mesh.quantized.tokens import exchange_tokens_by_node, sent


class Exchange(Protocol):
    """An algorithm, for a slice of a rank's tokens."""

    room: int
    """Assignments of a list in the first round."""
    rows: int
    """Rows of a list in any round, and assignments in later ones."""

    def lists(self, indices: Int[Array, "tokens chosen"], counts: Bool[Array, " tokens"]) -> Lists:
        """The assignments that a rank sorts."""
        ...

    def announce(self, window: Window, gates: Float[Array, "slices tokens chosen"]) -> Places:
        """Where the rows that this rank receives are multiplied, and with which weights, for each slice of a stack."""
        ...

    def apart(self, window: Window, gates: Float[Array, "slices tokens chosen"]) -> tuple[Window, OwnRows | None]:
        """Of a stack of slices: what is sent, and what this rank computes for itself; None where all is sent."""
        ...

    def dispatch(self, window: Window, x: Float[Array, "tokens embed"]) -> Float[Array, "rows embed"]:
        """The rows that this rank receives."""
        ...

    def combine(self, window: Window, results: Float[Array, "rows embed"]) -> Float[Array, "tokens embed"]:
        """For each token the sum of its results, from those of the rows that each rank has received."""
        ...


class AllToAll:
    """Each rank sends a token once to each rank that has some of its experts, and gets the sum of their results:
    forward and backward twice `exchange_tokens` of `expert * rows` rows, of which tensor ranks each send those of their
    own tokens and then join them (`gather_sequence`). `PLACE_BYTES` go ahead with each assignment."""

    def __init__(self, experts: ExpertsConfig, tokens: int, layout: ExpertLayout):
        self.ranks = lax.axis_size("expert")
        self.experts = experts.count // self.ranks
        self.room = room_of(tokens * experts.per_token, self.ranks, layout.capacity)
        self.rows = row_room(tokens, self.room, experts, self.ranks, layout.capacity)
        node_devices = layout.node_devices if layout.exchange.name == "hierarchical" else None
        self.send = partial(exchange_tokens_by_node, node_devices=node_devices) if node_devices else exchange_tokens
        self.dtype = layout.sent_dtype if self.ranks * lax.axis_size("tensor") > 1 else None
        self.own_first = layout.own_first.name

    def lists(self, indices: Int[Array, "tokens chosen"], counts: Bool[Array, " tokens"]) -> Lists:
        """A list for each rank, of this rank's own tokens."""
        return by_rank(indices, counts, self.ranks, self.experts, self.room, self.rows)

    def announce(self, window: Window, gates: Float[Array, "slices tokens chosen"]) -> Places:
        """From what other ranks announce, in one message for all slices: for each slot its weight, and its expert and
        row as the bits of a number."""
        slices, slots = len(gates), window.assignments.shape[1] // self.ranks

        def own(window: Window, gates: jax.Array) -> jax.Array:
            weights = spread(gates.reshape(-1, 1), window.assignments, window.slots)[:, 0]
            code = jnp.where(window.expert >= 0, window.expert * self.rows + window.row, NONE)
            return jnp.stack([weights, lax.bitcast_convert_type(code + _BITS_OF_ONE, jnp.float32)], axis=1)

        sent = jax.vmap(own)(window, gates).reshape(slices, self.ranks, slots, 2).swapaxes(0, 1)
        came = self._joined(sent.reshape(self.ranks, -1)).reshape(-1, slices, slots, 2).swapaxes(0, 1)
        code = lax.bitcast_convert_type(came[..., 1], jnp.int32) - _BITS_OF_ONE
        expert, row = (jnp.where(code >= 0, found, NONE) for found in (code // self.rows, code % self.rows))
        sort = partial(by_expert, rows=self.rows, each=self.experts, copies=min(gates.shape[2], self.experts))
        return jax.vmap(sort)(expert, row, came[..., 0])

    def apart(self, window: Window, gates: Float[Array, "slices tokens chosen"]) -> tuple[Window, OwnRows | None]:
        """The rank's own list, if it goes first."""
        if not self.own_first:
            return window, None
        rank = lax.axis_index("expert")
        hidden = jax.vmap(partial(without_own, rank=rank, ranks=self.ranks, rows=self.rows))(window)
        places = own_places(window, gates, rank, self.ranks, self.rows, self.experts)
        return hidden, OwnRows(places, self.dtype)

    def dispatch(self, window: Window, x: Float[Array, "tokens embed"]) -> Float[Array, "rows embed"]:
        """Those of all ranks for the experts of this one."""
        return sent(self.dtype, self._dispatched, x, window.tokens, window.back)

    def _dispatched(self, x: jax.Array, take: jax.Array, back: jax.Array) -> jax.Array:
        return self._joined(spread(x, take, back))

    def combine(self, window: Window, results: Float[Array, "rows embed"]) -> Float[Array, "tokens embed"]:
        """Each rank returns as many rows as it received."""
        returned = self.send(scatter_sequence(results[None])[0])
        return collect(returned, window.tokens, window.back)

    def _joined(self, rows: jax.Array) -> jax.Array:
        return gather_sequence(self.send(rows)[None])[0]


_BITS_OF_ONE = 0x3F800000
"""Of the float32 1.0. Integers up to 2^30 that are added to them make ordinary numbers, whose bits nothing flushes."""


class AllGather:
    """Every rank sees all tokens of the expert and tensor ranks, computes those of its experts, and the results are
    summed: forward and backward a `gather_tokens` and a `scatter_tokens` of a rank's tokens."""

    def __init__(self, experts: ExpertsConfig, tokens: int, layout: ExpertLayout):
        self.ranks = lax.axis_size("expert")
        self.experts = experts.count // self.ranks
        whole = tokens * self.ranks * lax.axis_size("tensor")
        self.dtype = layout.sent_dtype if self.ranks * lax.axis_size("tensor") > 1 else None
        self.room = self.rows = room_of(whole * experts.per_token, self.ranks, layout.capacity)

    def lists(self, indices: Int[Array, "tokens chosen"], counts: Bool[Array, " tokens"]) -> Lists:
        """One list, of all tokens for this rank's experts."""
        own = gather_tokens(indices) - lax.axis_index("expert") * self.experts
        here = gather_tokens(counts)[:, None] & (own >= 0) & (own < self.experts)
        lists = by_rank(jnp.where(here, own, self.experts), here.any(axis=1), 1, self.experts, self.room, self.rows)
        return lists

    def announce(self, window: Window, gates: Float[Array, "slices tokens chosen"]) -> Places:
        """From the weights of all tokens."""
        return jax.vmap(self._places)(window, gather_tokens(gates.swapaxes(0, 1)).swapaxes(0, 1))

    def _places(self, window: Window, gates: Float[Array, "tokens chosen"]) -> Places:
        weights = spread(gates.reshape(-1, 1), window.assignments, window.slots)
        slots = jnp.arange(window.expert.size)[None]
        found = by_expert(window.expert[None], slots, weights.T, window.expert.size, self.experts, 1)
        tokens = jnp.where(found.take >= 0, window.assignments[found.take] // gates.shape[1], NONE)
        back = jnp.where(window.slots >= 0, found.back[window.slots[:, 0]], NONE).reshape(gates.shape)
        return found._replace(take=tokens, back=back)

    def apart(self, window: Window, gates: Float[Array, "slices tokens chosen"]) -> tuple[Window, OwnRows | None]:
        """Nothing: all tokens are gathered."""
        del gates
        return window, None

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
"""By the name in a plan. `hierarchical` is `AllToAll` by `exchange_tokens_by_node`. JAX's
`ragged_all_to_all` is not used: its result has the varying type of its output buffer, so that a missing reduction would
not be noticed, it does not run on CPUs, and on GPUs it has crashed above 32 ranks."""


class OwnRows(NamedTuple):
    """The assignments of all slices that a rank sends nowhere."""

    places: Places
    """Where it is multiplied. Sources are the tokens of all slices."""
    dtype: str | None
    """How what is sent is rounded, and these rows like it."""

    def of(self, x: Float[Array, "tokens embed"]) -> Float[Array, "rows embed"]:
        """The rows in the order of experts."""
        return sent(self.dtype, spread, x, self.places.take, self.places.back)


def own_places(
    window: Window, gates: Float[Array, "slices tokens chosen"], rank: Int[Array, ""], ranks: int, rows: int, each: int
) -> Places:
    """Where what `rank` has in its own list is multiplied, of all slices together.

    Args:
        window: What the first round takes, stacked by slice.
        gates: Weights of the choices.
        rank: This one, of `ranks`.
        rows: Rows of a list in a round.
        each: Experts of a rank.

    Returns:
        Places whose sources are the tokens, slice by slice, and not rows.
    """
    slices, tokens, chosen = gates.shape

    def own(window: Window, gates: jax.Array) -> tuple[jax.Array, ...]:
        weights = spread(gates.reshape(-1, 1), window.assignments, window.slots)[:, 0]
        lists = (x.reshape(ranks, -1)[rank] for x in (window.expert, window.row, weights, window.tokens))
        return *lists, _row_in(window, rank, rows)

    expert, row, weights, token, row_of = jax.vmap(own)(window, gates)
    found = by_expert(expert, row, weights, rows, each, min(chosen, each))
    number = jnp.arange(slices)[:, None]
    sources = jnp.where(token >= 0, number * tokens + token, NONE).ravel()
    places = jnp.where(row_of >= 0, number * rows + row_of, NONE).reshape(-1, 1)
    take = jnp.where(found.take >= 0, sources[found.take], NONE)
    return found._replace(take=take, back=jnp.where(places >= 0, found.back[places[:, 0]], NONE))


def without_own(window: Window, rank: Int[Array, ""], ranks: int, rows: int) -> Window:
    """The assignments of a slice that are left to send. The room of this rank's own list stays empty."""

    def others(x: jax.Array) -> jax.Array:
        lists = x.reshape(ranks, -1)
        return jnp.where(jnp.arange(ranks)[:, None] == rank, NONE, lists).ravel()

    back = jnp.where(window.back // rows == rank, NONE, window.back)
    return window._replace(tokens=others(window.tokens), back=back, expert=others(window.expert))


def _row_in(window: Window, rank: jax.Array, rows: int) -> Int[Array, " tokens"]:
    """The row of each token in the list of `rank`, or `NONE`."""
    return jnp.where(window.back // rows == rank, window.back % rows, NONE).max(axis=1)
