"""Tokens to the ranks of their experts and back, in bounded memory and without dropping one.

A rank's tokens are cut into *slices*, so that one slice is sent while the experts work on another. In a *round* as many
assignments of a slice as there is room for (`parallel.expert_capacity` times an even share) are moved to the ranks of
their experts, computed, and their results moved back. One round is enough unless the load is uneven. How many are
needed is the maximum over all ranks, so that every rank runs the same number; those after the first are a loop with a
derivative of its own, which keeps nothing and takes no memory while it is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.plan import ExpertLayout
from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.layers.experts.lists import NONE, Lists, Places, Window, by_expert, by_rank, rounds_of, window_of
from jaxpar.layers.experts.messages import FURTHER_ROUNDS
from jaxpar.layers.experts.room import room_of, row_room
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
from jaxpar.mesh.wire.tokens import exchange_tokens_by_node, sent
from jaxpar.precision.seen import Seen, for_each_use

INPUT = "expert_input"
"""The activation that rows are as they arrive. Copies in the order of experts are more rows, and recomputed from it."""


class Operands(NamedTuple):
    """What rows are multiplied by."""

    weights: Arrays
    """With what else the products need to know of the layer, as numbers."""
    unseen: Mapping[str, Seen]
    """By group of matmuls, zeros whose cotangents are what is seen of its tensors, where it is asked for: over slices
    and rounds the largest magnitude, and the sum of counts."""


type Products = Callable[[Operands, jax.Array, jax.Array, jax.Array], jax.Array]
"""(operands, rows in the order of this rank's experts, weight of each row, rows of each expert) -> rows; where tensor
ranks split the experts, partial sums."""

type Shared = Callable[[jax.Array], jax.Array]
"""What experts that all tokens use add to them."""


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
        node_devices = layout.node_devices if layout.exchange == "hierarchical" else None
        self.send = partial(exchange_tokens_by_node, node_devices=node_devices) if node_devices else exchange_tokens
        self.wire = layout.wire if self.ranks * lax.axis_size("tensor") > 1 else None

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

    def dispatch(self, window: Window, x: Float[Array, "tokens embed"]) -> Float[Array, "rows embed"]:
        """Those of all ranks for the experts of this one."""
        return sent(self.wire, self._dispatched, x, window.tokens, window.back)

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
        self.wire = layout.wire if self.ranks * lax.axis_size("tensor") > 1 else None
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

    def dispatch(self, window: Window, x: Float[Array, "tokens embed"]) -> Float[Array, "rows embed"]:
        """The tokens of all ranks."""
        del window
        return sent(self.wire, gather_tokens, x)

    def combine(self, window: Window, results: Float[Array, "rows embed"]) -> Float[Array, "tokens embed"]:
        """Sums over the ranks of the experts."""
        del window
        return scatter_tokens(results)


EXCHANGES: dict[str, Callable[[ExpertsConfig, int, ExpertLayout], Exchange]] = {
    "all_to_all": AllToAll,
    "hierarchical": AllToAll,
    "all_gather": AllGather,
}
"""By the name in a plan. `hierarchical` is `AllToAll` by `exchange_tokens_by_node`. There is no `ragged`: see
`jaxpar.config.checks.experts.NO_RAGGED`."""


class Round(NamedTuple):
    """A round of a slice: what is sent, and where what is received is multiplied."""

    window: Window
    places: Places


def lists_of(
    exchange: Exchange, slices: int, indices: Int[Array, "tokens chosen"], counts: Bool[Array, " tokens"]
) -> Lists:
    """Of each slice of a rank's tokens, stacked."""
    return jax.vmap(exchange.lists)(_sliced(slices, indices), _sliced(slices, counts))


def exchanged(
    exchange: Exchange,
    products: Products,
    w: Operands,
    x: Float[Array, "tokens embed"],
    gates: Float[Array, "tokens chosen"],
    lists: Lists,
    rounds: Int[Array, ""],
    shared: Shared | None = None,
) -> tuple[Float[Array, "tokens embed"], Float[Array, ""]]:
    """The sums over each token's experts, and how many assignments this rank has handled.

    `rounds` is the same on all ranks that exchange tokens. The sums include what `shared` computes of all tokens, in
    slices beside the return of the last one.
    """
    slices = len(lists.order)
    x_of, gates_of = _sliced(slices, x), _sliced(slices, gates)
    window = jax.vmap(lambda own: window_of(own, 0, exchange.room, exchange.rows))(lists)
    first = Round(window, exchange.announce(window, gates_of))
    each = [jax.tree.map(lambda leaf: leaf[number], first) for number in range(slices)]  # noqa: B023
    *own, w = _for_each_use(w, slices + 1)
    ys, beside = _first_rounds(exchange, products, own, x, each, shared)
    y = jnp.stack(ys)
    handled = jnp.sum(window.assignments >= 0).astype(jnp.float32)
    if lists.place[0].size > exchange.room or len(lists.place[0]) > exchange.rows:
        rest: Any = _rest  # which type checkers do not see through `custom_vjp` of a partial
        more, others = rest(exchange, products, w, x_of, gates_of, lists, rounds)
        y, handled = y + more, handled + others
    y = y.reshape(x.shape)
    return y if beside is None else y + beside, handled


def rounds_needed(exchange: Exchange, lists: Lists) -> Int[Array, ""]:
    """Rounds that this rank's lists need, one at least."""
    return jnp.max(jax.vmap(lambda own: rounds_of(own, exchange.rows))(lists))


def _sliced(slices: int, x: jax.Array) -> jax.Array:
    return x.reshape(slices, -1, *x.shape[1:])


def _computed(products: Products, w: Operands, places: Places, rows: jax.Array) -> jax.Array:
    """For each received row the sum of the results of its experts on this rank."""
    rows = checkpoint_name(rows, INPUT)
    found = products(w, spread(rows, places.take, places.back), places.weights, places.sizes)
    return collect(found, places.take, places.back)


def _for_each_use(w: Operands, uses: int) -> list[Operands]:
    """`w` for each slice, and for the rounds after the first."""
    each = {group: for_each_use(own, uses) for group, own in w.unseen.items()}
    return [w._replace(unseen={group: own[number] for group, own in each.items()}) for number in range(uses)]


def _first_rounds(
    exchange: Exchange, products: Products, w: list[Operands], x: jax.Array, rounds: list[Round], shared: Shared | None
) -> tuple[list[jax.Array], jax.Array | None]:
    """(the sums of the first round of each slice, the result of `shared`). `w` is given for each slice.

    A slice is sent, and the results of another return, while the experts work on a third.

    An `optimization_barrier` makes the three end before the next ones begin. Its derivative is the same of the
    gradients: backward, results are sent and gradients of tokens return beside the products of a slice.
    """
    last, xs, whole = len(rounds) - 1, list(_sliced(len(rounds), x)), None if shared is None else x
    results: Any = None
    rows: Any = exchange.dispatch(rounds[0].window, xs[0])
    ys: list[jax.Array] = []
    for number, own in enumerate(rounds):
        ahead = exchange.dispatch(rounds[number + 1].window, xs[number + 1]) if number < last else None
        if number:
            ys.append(exchange.combine(rounds[number - 1].window, results))
        results = _computed(products, w[number], own.places, rows)
        if last:
            ahead, results, ys, xs, whole = lax.optimization_barrier((ahead, results, ys, xs, whole))
        rows = ahead
    y = exchange.combine(rounds[last].window, results)
    beside = None if shared is None or whole is None else shared(whole)
    if last:
        y, beside = lax.optimization_barrier((y, beside))
    return [*ys, y], beside


# ---- rounds after the first


class _Turn(NamedTuple):
    """A later round of one slice."""

    slice: jax.Array
    round: jax.Array

    def of(self, tree: Any) -> Any:
        """What belongs to the slice."""
        return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, self.slice, keepdims=False), tree)

    def add(self, whole: jax.Array, part: jax.Array) -> jax.Array:
        """`part` added to that of the slice."""
        return lax.dynamic_update_index_in_dim(whole, self.of(whole) + part.astype(whole.dtype), self.slice, 0)


def _turns(slices: int, rounds: jax.Array, step: Callable[[_Turn, Any], Any], carry: Any) -> Any:
    """`step` for each slice in each round but the first."""
    run = lambda number, carry: vary(step(_Turn(number % slices, 1 + number // slices), carry))
    with jax.named_scope(FURTHER_ROUNDS):
        return lax.fori_loop(vary(jnp.int32(0)), vary((rounds - 1) * slices), run, vary(carry))


def _turn(
    exchange: Exchange, products: Products, window: Window, w: Operands, x: jax.Array, gates: jax.Array
) -> jax.Array:
    stacked = exchange.announce(jax.tree.map(lambda leaf: leaf[None], window), gates[None])
    places = jax.tree.map(lambda leaf: leaf[0], stacked)
    return exchange.combine(window, _computed(products, w, places, exchange.dispatch(window, x)))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rest(
    exchange: Exchange, products: Products, w: Operands, x: jax.Array, gates: jax.Array, lists: Lists, rounds: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The sums of all rounds but the first of each slice, and the assignments handled in them."""

    def step(turn: _Turn, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y, handled = carry
        window = window_of(turn.of(lists), turn.round, exchange.rows, exchange.rows)
        y = turn.add(y, _turn(exchange, products, window, w, turn.of(x), turn.of(gates)))
        return y, handled + jnp.sum(window.assignments >= 0)

    return _turns(len(x), rounds, step, (jnp.zeros_like(x), jnp.float32(0)))


type _Kept = tuple[Operands, jax.Array, jax.Array, Lists, jax.Array]


def _forward(exchange: Exchange, products: Products, *arguments: Any) -> tuple[tuple[jax.Array, jax.Array], _Kept]:
    rest: Any = _rest
    return rest(exchange, products, *arguments), arguments


def _backward(exchange: Exchange, products: Products, kept: _Kept, cotangents: Any) -> tuple[Any, ...]:
    w, x, gates, lists, rounds = kept
    dy, _ = cotangents

    def step(turn: _Turn, total: Any) -> Any:
        window = window_of(turn.of(lists), turn.round, exchange.rows, exchange.rows)
        own = partial(_turn, exchange, products, window)
        _, pullback = jax.vjp(jax.checkpoint(own, prevent_cse=False), w, turn.of(x), turn.of(gates))
        dw, dx, dgates = pullback(turn.of(dy))
        sums = jax.tree.map(lambda a, b: a + b.astype(jnp.float32), total[0].weights, dw.weights)
        seen = {group: own.joined_to(dw.unseen[group]) for group, own in total[0].unseen.items()}
        return Operands(sums, seen), turn.add(total[1], dx), turn.add(total[2], dgates)

    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.float32), (w, x, gates))
    total = _turns(len(x), rounds, step, zeros)
    return *jax.tree.map(lambda a, like: a.astype(like.dtype), total, (w, x, gates)), None, None


_rest.defvjp(_forward, _backward)
