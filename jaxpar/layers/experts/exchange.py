"""Tokens to the ranks of their experts and back, in bounded memory and without dropping one.

Assignments of tokens to experts are sorted once, stably. A *round* takes as many rows of each list as there is room for
(`parallel.expert_capacity` times an even share), moves them to the ranks of their experts, computes them, and moves the
results back. One round is enough unless the load is uneven. How many are needed is the maximum over all ranks, so that
every rank runs the same number; those after the first are a loop with a derivative of its own, which keeps nothing and
takes no memory while it is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.layers.experts.messages import FURTHER_ROUNDS, rows_sent
from jaxpar.layers.experts.routing import NO_EXPERT
from jaxpar.layers.experts.rows import collect, spread
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import (
    exchange_tokens,
    gather_sequence,
    gather_tokens,
    scatter_sequence,
    scatter_tokens,
)
from jaxpar.mesh.parameters import Arrays

type Products = Callable[[Arrays, jax.Array, jax.Array, jax.Array], jax.Array]
"""(weights, rows in the order of this rank's experts, weight of each row, rows of each expert) -> rows; where tensor
ranks split the experts, partial sums."""

NONE = -1


class Assignments(NamedTuple):
    """The sorted assignments of tokens to experts."""

    order: Int[Array, " assignments"]
    """Assignments in the order of their experts; those that do not count are last."""
    place: Int[Array, "tokens chosen"]
    """The place of each assignment in that order, counted from the first of its list."""
    list: Int[Array, "tokens chosen"]
    """The list of each assignment; `NONE` of those that do not count."""
    sizes: Int[Array, "lists experts"]
    """Assignments of each expert in each list; a list is what is sent to one rank, or computed here."""

    @property
    def lengths(self) -> Int[Array, " lists"]:
        """Assignments of each list."""
        return self.sizes.sum(axis=1)


class Window(NamedTuple):
    """What a round takes of each list: `room` assignments."""

    tokens: Int[Array, " rows"]
    """The token of each row, or `NONE`."""
    assignments: Int[Array, " rows"]
    """The assignment of each row, or `NONE`."""
    back: Int[Array, "tokens chosen"]
    """The row of each assignment, or `NONE`."""
    sizes: Int[Array, "lists experts"]
    """Rows of each expert in each list."""


class Exchange(Protocol):
    """An algorithm."""

    room: int
    """Rows for each list."""

    def assign(self, indices: Int[Array, "tokens chosen"], counts: Bool[Array, " tokens"]) -> Assignments:
        """The assignments that a rank sorts."""
        ...

    def run(self, window: Window, products: Products, w: Arrays, x: jax.Array, gates: jax.Array) -> jax.Array:
        """The results of the rows of a window, added up for each token."""
        ...

    def gates(self, gates: Float[Array, "tokens chosen"]) -> Float[Array, "more_tokens chosen"]:
        """Weights of the assignments that a rank sorts."""
        ...


class AllToAll:
    """Each rank sends a row to the rank of an expert: forward and backward twice `exchange_tokens` of `expert * room`
    rows, of which tensor ranks each send those of their own tokens and then join them (`gather_sequence`)."""

    def __init__(self, experts: int, assignments: int, capacity: float):
        self.ranks = lax.axis_size("expert")
        self.experts = experts // self.ranks
        self.room = room_of(assignments, self.ranks, capacity)

    def gates(self, gates: Float[Array, "tokens chosen"]) -> Float[Array, "tokens chosen"]:
        """Those of the rank's own tokens."""
        return gates

    def assign(self, indices: Int[Array, "tokens chosen"], counts: Bool[Array, " tokens"]) -> Assignments:
        """A list for each rank, of this rank's own tokens."""
        experts = jnp.where(counts[:, None] & (indices != NO_EXPERT), indices, self.ranks * self.experts)
        return _sorted(experts, self.ranks, self.experts)

    def run(self, window: Window, products: Products, w: Arrays, x: jax.Array, gates: jax.Array) -> jax.Array:
        """Rows out, products, rows back."""
        out = exchange_tokens(spread(x, window.tokens, window.back))
        weights = spread(gates.reshape(-1, 1), window.assignments, window.back.reshape(-1, 1))
        weights, sizes = exchange_tokens(weights), exchange_tokens(window.sizes)
        out, weights, sizes = (gather_sequence(each[None])[0] for each in (out, weights, sizes))
        take, back = by_expert(sizes, self.room)
        rows = products(w, spread(out, take, back), spread(weights, take, back)[:, 0], sizes.sum(axis=0))
        back_again = exchange_tokens(scatter_sequence(collect(rows, take, back)[None])[0])
        return collect(back_again, window.tokens, window.back)


class AllGather:
    """Every rank sees all tokens of the expert and tensor ranks, computes those of its experts, and the results are
    summed: forward and backward a `gather_tokens` and a `scatter_tokens` of a rank's tokens."""

    def __init__(self, experts: int, assignments: int, capacity: float):
        self.ranks = lax.axis_size("expert")
        self.experts = experts // self.ranks
        self.room = room_of(assignments * self.ranks * lax.axis_size("tensor"), self.ranks, capacity)

    def gates(self, gates: Float[Array, "tokens chosen"]) -> Float[Array, "more_tokens chosen"]:
        """Those of all tokens."""
        return gather_tokens(gates)

    def assign(self, indices: Int[Array, "tokens chosen"], counts: Bool[Array, " tokens"]) -> Assignments:
        """One list, of all tokens for this rank's experts."""
        own = gather_tokens(indices) - lax.axis_index("expert") * self.experts
        here = gather_tokens(counts)[:, None] & (own >= 0) & (own < self.experts)
        return _sorted(jnp.where(here, own, self.experts), 1, self.experts)

    def run(self, window: Window, products: Products, w: Arrays, x: jax.Array, gates: jax.Array) -> jax.Array:
        """Tokens in, products, sums out."""
        joined = gather_tokens(x)
        weights = spread(gates.reshape(-1, 1), window.assignments, window.back.reshape(-1, 1))[:, 0]
        rows = products(w, spread(joined, window.tokens, window.back), weights, window.sizes[0])
        return scatter_tokens(collect(rows, window.tokens, window.back))


EXCHANGES: dict[str, Callable[[int, int, float], Exchange]] = {"all_to_all": AllToAll, "all_gather": AllGather}
"""By `parallel.expert_exchange`."""


def room_of(assignments: int, lists: int, capacity: float) -> int:
    """Rows for each list of so many assignments in all: all of them at most."""
    return min(assignments, ceil(capacity * assignments / lists)) if lists > 1 else assignments


def exchange_of(asked: str, experts: ExpertsConfig, capacity: float, expert: int, tensor: int) -> tuple[str, str]:
    """(the algorithm, why). Both count what a rank sends one way, in tokens of its own."""
    rows = {name: rows_sent(name, experts, capacity, expert, tensor) for name in ("all_gather", "all_to_all")}
    each = (f"{rows[name]:.3g} {what}by {name}" for name, what in (("all_to_all", "rows "), ("all_gather", "")))
    sent = f"of each token a rank sends {', '.join(each)}"
    return (min(rows, key=lambda name: rows[name]), sent) if asked == "auto" else (asked, f"asked for; {sent}")


def exchanged(
    exchange: Exchange,
    products: Products,
    w: Arrays,
    x: Float[Array, "tokens embed"],
    gates: Float[Array, "tokens chosen"],
    assignments: Assignments,
    rounds: Int[Array, ""],
) -> tuple[Float[Array, "tokens embed"], Float[Array, ""]]:
    """The sums over each token's experts, and how many rows this rank has handled.

    `rounds` is the same on all ranks that exchange tokens.
    """
    gates = exchange.gates(gates)
    window = window_of(assignments, exchange.room, vary(jnp.int32(0)))
    y, handled = exchange.run(window, products, w, x, gates), window.sizes.sum().astype(jnp.float32)
    if assignments.place.size <= exchange.room:
        return y, handled
    rest: Any = _rest  # which type checkers do not see through `custom_vjp` of a partial
    more, others = rest(exchange, products, w, x, gates, assignments, rounds)
    return y + more, handled + others


def rounds_of(assignments: Assignments, room: int) -> Int[Array, ""]:
    """Rounds that this rank's lists need, one at least."""
    return jnp.maximum(1, jnp.max(-(-assignments.lengths // room)))


def window_of(assignments: Assignments, room: int, number: jax.Array) -> Window:
    """What round `number` takes."""
    tokens, chosen = assignments.place.shape
    lengths, first = assignments.lengths, number * room
    starts = jnp.cumsum(lengths) - lengths
    places = first + jnp.arange(room)
    at = jnp.minimum(starts[:, None] + places, tokens * chosen - 1)
    rows = jnp.where(places < lengths[:, None], assignments.order[at], NONE).ravel()
    inside = (assignments.list >= 0) & (assignments.place >= first) & (assignments.place < first + room)
    back = jnp.where(inside, assignments.list * room + assignments.place - first, NONE)
    ends = jnp.clip(jnp.cumsum(assignments.sizes, axis=1) - first, 0, room)
    sizes = jnp.diff(ends, axis=1, prepend=0)
    return Window(jnp.where(rows >= 0, rows // chosen, NONE), rows, back, sizes)


def by_expert(sizes: Int[Array, "sources experts"], room: int) -> tuple[Int[Array, " rows"], Int[Array, "rows 1"]]:
    """(take, back) that bring `room` rows of each source, sorted by expert, into one order by expert and source."""
    sources, experts = sizes.shape
    within = jnp.cumsum(sizes, axis=1) - sizes
    ends = jnp.cumsum(sizes.T.ravel())
    starts = ends - sizes.T.ravel()
    rows = jnp.arange(sources * room)
    group = jnp.searchsorted(ends, rows, side="right")
    expert, source = jnp.minimum(group, experts * sources - 1) // sources, group % sources
    take = source * room + within[source, expert] + rows - starts[expert * sources + source]
    take = jnp.where(rows < ends[-1], take, NONE)
    source, place = rows // room, rows % room
    expert = jnp.minimum(jnp.sum(jnp.cumsum(sizes, axis=1)[source] <= place[:, None], axis=1), experts - 1)
    back = starts[expert * sources + source] + place - within[source, expert]
    return take, jnp.where(place < sizes.sum(axis=1)[source], back, NONE)[:, None]


def _sorted(experts: Int[Array, "tokens chosen"], lists: int, each: int) -> Assignments:
    """Assignments by expert, `each` of them in a list; an expert above all lists stands for none."""
    flat = experts.ravel()
    order = jnp.argsort(flat, stable=True)
    rank = jnp.argsort(order).reshape(experts.shape)
    ends = jnp.searchsorted(flat[order], jnp.arange(lists * each), side="right")
    sizes = jnp.diff(ends, prepend=0).reshape(lists, each)
    own = jnp.minimum(experts // each, lists - 1)
    starts = jnp.cumsum(sizes.sum(axis=1)) - sizes.sum(axis=1)
    return Assignments(order, rank - starts[own], jnp.where(experts < lists * each, own, NONE), sizes)


# ---- rounds after the first


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rest(
    exchange: Exchange, products: Products, w: Arrays, x: jax.Array, gates: jax.Array, assignments: Assignments,
    rounds: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """The sums of all rounds but the first, and the rows handled in them."""

    def step(number: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y, handled = carry
        window = window_of(assignments, exchange.room, number)
        y = y + exchange.run(window, products, w, x, gates)
        return vary(y), vary(handled + window.sizes.sum())

    with jax.named_scope(FURTHER_ROUNDS):
        return lax.fori_loop(vary(jnp.int32(1)), vary(rounds), step, (vary(jnp.zeros_like(x)), vary(jnp.float32(0))))


type _Kept = tuple[Arrays, jax.Array, jax.Array, Assignments, jax.Array]


def _forward(exchange: Exchange, products: Products, *arguments: Any) -> tuple[tuple[jax.Array, jax.Array], _Kept]:
    rest: Any = _rest
    return rest(exchange, products, *arguments), arguments


def _backward(exchange: Exchange, products: Products, kept: _Kept, cotangents: Any) -> tuple[Any, ...]:
    w, x, gates, assignments, rounds = kept
    dy, _ = cotangents

    def step(number: jax.Array, total: Any) -> Any:
        window = window_of(assignments, exchange.room, number)
        own = lambda w, x, gates: exchange.run(window, products, w, x, gates)
        _, pullback = jax.vjp(jax.checkpoint(own, prevent_cse=False), w, x, gates)
        return jax.tree.map(lambda a, b: vary(a + b.astype(jnp.float32)), total, pullback(dy))

    zeros = jax.tree.map(lambda a: vary(jnp.zeros(a.shape, jnp.float32)), (w, x, gates))
    with jax.named_scope(FURTHER_ROUNDS):
        total = lax.fori_loop(vary(jnp.int32(1)), vary(rounds), step, zeros)
    return *jax.tree.map(lambda a, like: a.astype(like.dtype), total, (w, x, gates)), None, None


_rest.defvjp(_forward, _backward)
