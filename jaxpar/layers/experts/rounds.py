"""Tokens to the ranks of their experts and back, in bounded memory and without dropping one.

A rank's tokens are cut into *slices*, so that one slice is sent while the experts work on another. In a *round* as many
assignments of a slice as there is room for (`parallel.experts.capacity` times an even share) are moved to the ranks of
their experts, computed, and their results moved back. One round is enough unless the load is uneven. How many are
needed is the maximum over all ranks, so that every rank runs the same number; those after the first are a loop with a
derivative of its own, which keeps nothing and takes no memory while it is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from jaxpar.layers.experts.exchange import Exchange
from jaxpar.layers.experts.messages import FURTHER_ROUNDS
from jaxpar.layers.experts.routing import TOKEN_AXES
from jaxpar.layers.experts.rows import Lists, Places, Window, collect, rounds_of, spread, window_of
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import reduce_max
from jaxpar.mesh.parameters import Arrays
from jaxpar.mesh.quantized.tokens import sent
from jaxpar.runtime.observed import Observed, for_each_use

INPUT = "expert_input"
"""The activation that rows are as they arrive. Copies in the order of experts are more rows, and recomputed from it."""


class Operands(NamedTuple):
    """What rows are multiplied by."""

    weights: Arrays
    """With what else the products need to know of the layer, as numbers."""
    observed: Mapping[str, Observed]
    """By group of matmuls, zeros whose cotangents are statistics of its tensors over slices and rounds, where they are
    asked for."""


type Products = Callable[[Operands, jax.Array, jax.Array, jax.Array], jax.Array]
"""(operands, rows in the order of this rank's experts, weight of each row, rows of each expert) -> rows; where tensor
ranks split the experts, partial sums."""

type Shared = Callable[[jax.Array], jax.Array]
"""What experts that all tokens use add to them."""


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
    shared: Shared | None = None,
) -> tuple[Float[Array, "tokens embed"], Float[Array, ""], Int[Array, ""]]:
    """(the sums over each token's experts, how many assignments this rank has handled, rounds).

    The sums include what `shared` computes of all tokens, in slices beside the return of the last one.
    """
    slices = len(lists.order)
    *of_slices, of_own, of_rest = _for_each_use(w, slices + 2)
    given, later = (of_rest, x, gates), None
    if lists.place[0].size > exchange.room or len(lists.place[0]) > exchange.rows:
        summed: Any = _summed_with_later  # which type checkers do not see through `custom_vjp` of a partial
        weights, x, gates, later = summed(exchange, products, *given, lists)
        *of_slices, of_own = (own._replace(weights=weights) for own in (*of_slices, of_own))
    gates_of = _sliced(slices, gates)
    window = jax.vmap(lambda own: window_of(own, 0, exchange.room, exchange.rows))(lists)
    to_send, apart = exchange.apart(window, gates_of)
    places = exchange.announce(to_send, gates_of)
    if apart is not None:  # one list of all is empty
        places = places._replace(take=places.take[:, : -exchange.room], weights=places.weights[:, : -exchange.room])
    first = Round(to_send, places)
    each = [jax.tree.map(lambda leaf: leaf[number], first) for number in range(slices)]  # noqa: B023
    own = None if apart is None else partial(_local, exchange, products, of_own, apart)
    ys, beside, needed = _first_rounds(
        exchange, products, of_slices, x, each, rounds_needed(exchange, lists), shared, own
    )
    rounds = reduce_max(needed, TOKEN_AXES)  # so that no rank waits for another in the loop
    y = jnp.stack(ys)
    handled = jnp.sum(window.assignments >= 0).astype(jnp.float32)
    if later is not None:
        rest: Any = _with_rest
        y, handled = rest(exchange, products, y, handled, *given, lists, rounds, later)
    y = y.reshape(x.shape)
    return y if beside is None else y + beside, handled, rounds


def rounds_needed(exchange: Exchange, lists: Lists) -> Int[Array, ""]:
    """Rounds that this rank's lists need, one at least."""
    return jnp.max(jax.vmap(lambda own: rounds_of(own, exchange.rows))(lists))


def _sliced(slices: int, x: jax.Array) -> jax.Array:
    return x.reshape(slices, -1, *x.shape[1:])


def _computed(products: Products, w: Operands, places: Places, rows: jax.Array) -> jax.Array:
    """For each received row the sum of the results of its experts on this rank."""
    rows = checkpoint_name(rows, INPUT)
    return _multiplied(products, w, places, spread(rows, places.take, places.back))


def _local(exchange: Exchange, products: Products, w: Operands, places: Places, x: jax.Array) -> jax.Array:
    """For each token the sum of the results of its experts on this rank, without a message."""
    return _multiplied(products, w, places, sent(exchange.dtype, spread, x, places.take, places.back))


def _multiplied(products: Products, w: Operands, places: Places, rows: jax.Array) -> jax.Array:
    """The sums over experts, of rows in the order of experts."""
    found = products(w, rows, places.weights, places.sizes)
    return collect(found, places.take, places.back)


def _for_each_use(w: Operands, uses: int) -> list[Operands]:
    """`w` for each slice, and for the rounds after the first."""
    each = {group: for_each_use(own, uses) for group, own in w.observed.items()}
    return [w._replace(observed={group: own[number] for group, own in each.items()}) for number in range(uses)]


def _first_rounds(
    exchange: Exchange,
    products: Products,
    w: list[Operands],
    x: jax.Array,
    rounds: list[Round],
    needed: jax.Array,
    shared: Shared | None,
    own: Callable[[jax.Array], jax.Array] | None,
) -> tuple[list[jax.Array], jax.Array | None, jax.Array]:
    """(the sums of the first round of each slice, the results of `shared` and `own` of all tokens, `needed`). `w` is
    given for each slice.

    A slice is sent, and the results of another return, while the experts work on a third. `own` is computed while the
    first one is sent.

    An `optimization_barrier` makes the three end before the next ones begin. Its derivative is the same of the
    gradients: backward, results are sent and gradients of tokens return beside the products of a slice. That after
    `own` makes gradients of tokens of the second slice return beside products of gradients of the first one's rows,
    which leaves those of all matrices to the last message, and `needed` be sent beside products.
    """
    last, xs, whole = len(rounds) - 1, list(_sliced(len(rounds), x)), None if shared is None else x
    results: Any = None
    rows: Any = exchange.dispatch(rounds[0].window, xs[0])
    mine = None
    if own is not None:
        rows, xs[1:], mine, needed = lax.optimization_barrier((rows, xs[1:], own(x), needed))
    ys: list[jax.Array] = []
    for number, place in enumerate(rounds):
        ahead = exchange.dispatch(rounds[number + 1].window, xs[number + 1]) if number < last else None
        if number:
            ys.append(exchange.combine(rounds[number - 1].window, results))
        results = _computed(products, w[number], place.places, rows)
        if last:
            ahead, results, ys, xs, whole = lax.optimization_barrier((ahead, results, ys, xs, whole))
        rows = ahead
    y = exchange.combine(rounds[last].window, results)
    beside = None if shared is None or whole is None else shared(whole)
    if last:
        y, beside = lax.optimization_barrier((y, beside))
    if mine is not None:
        beside = mine if beside is None else beside + mine
    return [*ys, y], beside, needed


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


class _Later(NamedTuple):
    """Zeros that lead from `_summed_with_later` to `_with_rest`. Their cotangents come back with what the former's
    backward needs of the latter: gradients of the first round's sums are those of later rounds too."""

    y: Float[Array, "slices tokens embed"]
    rounds: Float[Array, ""]
    """A whole number: cotangents of integers do not exist."""


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _with_rest(
    exchange: Exchange,
    products: Products,
    y: Float[Array, "slices tokens embed"],
    handled: Float[Array, ""],
    w: Operands,
    x: Float[Array, "tokens embed"],
    gates: Float[Array, "tokens chosen"],
    lists: Lists,
    rounds: jax.Array,
    later: _Later,
) -> tuple[Float[Array, "slices tokens embed"], Float[Array, ""]]:
    """`y` with the sums of all rounds but the first added, and `handled` with the assignments of these."""
    del later
    slices = len(y)
    x, gates = _sliced(slices, x), _sliced(slices, gates)

    def step(turn: _Turn, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y, handled = carry
        window = window_of(turn.of(lists), turn.round, exchange.rows, exchange.rows)
        y = turn.add(y, _turn(exchange, products, window, w, turn.of(x), turn.of(gates)))
        return y, handled + jnp.sum(window.assignments >= 0)

    return _turns(slices, rounds, step, (y, handled))


def _with_rest_forward(exchange: Exchange, products: Products, *arguments: Any) -> tuple[Any, jax.Array]:
    rest: Any = _with_rest
    *_, rounds, _ = arguments
    return rest(exchange, products, *arguments), rounds


def _with_rest_backward(exchange: Exchange, products: Products, rounds: jax.Array, cotangents: Any) -> tuple[Any, ...]:
    del exchange, products
    dy, dhandled = cotangents
    later = _Later(*vary((dy, rounds.astype(jnp.float32))))
    return dy, dhandled, None, None, None, None, None, later


_with_rest.defvjp(_with_rest_forward, _with_rest_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _summed_with_later(
    exchange: Exchange,
    products: Products,
    w: Operands,
    x: Float[Array, "tokens embed"],
    gates: Float[Array, "tokens chosen"],
    lists: Lists,
) -> tuple[Arrays, jax.Array, jax.Array, _Later]:
    """What the first rounds take: (weights, `x`, `gates`), unchanged, and what leads to `_with_rest`.

    Backward, gradients of the rounds after the first are added to theirs in place. With a sum of their own, XLA would
    fill buffers like all matrices with zeros, copy them into the loop and add them, also where the loop does not run.
    """
    del exchange, products
    sums = jnp.zeros((len(lists.order), len(x) // len(lists.order), x.shape[1]), x.dtype)
    return w.weights, x, gates, _Later(*vary((sums, jnp.float32(0))))


def _summed_forward(exchange: Exchange, products: Products, *arguments: Any) -> tuple[Any, tuple[Any, ...]]:
    first: Any = _summed_with_later
    return first(exchange, products, *arguments), arguments


def _summed_backward(exchange: Exchange, products: Products, kept: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
    w, x, gates, lists = kept
    dw, dx, dgates, later = cotangents
    slices = len(lists.order)
    x_of, gates_of = _sliced(slices, x), _sliced(slices, gates)

    def step(turn: _Turn, total: Any) -> Any:
        window = window_of(turn.of(lists), turn.round, exchange.rows, exchange.rows)
        own = partial(_turn, exchange, products, window)
        _, pullback = jax.vjp(jax.checkpoint(own, prevent_cse=False), w, turn.of(x_of), turn.of(gates_of))
        dw, dx, dgates = pullback(turn.of(later.y))
        sums = jax.tree.map(lambda a, b: a + b.astype(jnp.float32), total[0].weights, dw.weights)
        seen = {group: own.joined_to(dw.observed[group]) for group, own in total[0].observed.items()}
        return Operands(sums, seen), turn.add(total[1], dx), turn.add(total[2], dgates)

    sums: Any = jax.tree.map(lambda a: a.astype(jnp.float32), dw)
    first = Operands(sums, jax.tree.map(jnp.zeros_like, w.observed)), _sliced(slices, dx), _sliced(slices, dgates)
    total, dx, dgates = _turns(slices, later.rounds.astype(jnp.int32), step, first)
    dw = jax.tree.map(lambda a, like: a.astype(like.dtype), total, w)
    return dw, dx.reshape(x.shape), dgates.reshape(gates.shape), None


_summed_with_later.defvjp(_summed_forward, _summed_backward)
