"""Tokens to the ranks of their experts and back, in bounded memory and without dropping one.

A rank's tokens are cut into *slices*, so that one slice is sent while the experts work on another. In a *round* as many
assignments of a slice as there is room for (`parallel.experts.capacity` times an even share) are moved to the ranks of
their experts, computed, and their results moved back. One round is enough unless the load is uneven. How many are
needed is the maximum over all ranks, so that every rank runs the same number; those after the first are a loop
(`jaxpar.layers.experts.later_rounds`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxpar.layers.experts.exchange import Exchange
from jaxpar.layers.experts.later_rounds import summed_with_later, with_rest
from jaxpar.layers.experts.products import Operands, Products, computed, local, sliced
from jaxpar.layers.experts.routing import STREAM_AXES
from jaxpar.layers.experts.rows import Lists, Places, Window, rounds_of, window_of
from jaxpar.mesh.collectives import reduce_max
from jaxpar.runtime.observed import for_each_use

type Shared = Callable[[jax.Array], jax.Array]
"""What experts that all tokens use add to them."""


class Round(NamedTuple):
    """A round of a slice: what is sent, and where what is received is multiplied."""

    window: Window
    places: Places


def lists_of(
    exchange: Exchange, slices: int, indices: Int[Array, "tokens chosen"], counts: Bool[Array, " tokens"]
) -> Lists:
    """The lists of each slice of a rank's tokens, stacked."""
    return jax.vmap(exchange.lists)(sliced(slices, indices), sliced(slices, counts))


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
        weights, x, gates, later = summed_with_later(exchange, products, *given, lists)
        *of_slices, of_own = (own._replace(weights=weights) for own in (*of_slices, of_own))
    gates_of = sliced(slices, gates)
    window = jax.vmap(lambda own: window_of(own, 0, exchange.room, exchange.rows))(lists)
    to_send, apart = exchange.apart(window, gates_of)
    places = exchange.announce(to_send, gates_of)
    if apart is not None:  # one list of all is empty
        places = places._replace(take=places.take[:, : -exchange.room], weights=places.weights[:, : -exchange.room])
    first = Round(to_send, places)
    each = [jax.tree.map(lambda leaf: leaf[number], first) for number in range(slices)]  # noqa: B023
    own = None if apart is None else partial(local, exchange, products, of_own, apart)
    ys, beside, needed = _first_rounds(
        exchange, products, of_slices, x, each, rounds_needed(exchange, lists), shared, own
    )
    rounds = reduce_max(needed, STREAM_AXES)  # so that no rank waits for another in the loop
    y = jnp.stack(ys)
    handled = jnp.sum(window.assignments >= 0).astype(jnp.float32)
    if later is not None:
        y, handled = with_rest(exchange, products, y, handled, *given, lists, rounds, later)
    y = y.reshape(x.shape)
    return y if beside is None else y + beside, handled, rounds


def rounds_needed(exchange: Exchange, lists: Lists) -> Int[Array, ""]:
    """Rounds that this rank's lists need, one at least."""
    return jnp.max(jax.vmap(lambda own: rounds_of(own, exchange.rows))(lists))


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
    last, xs, whole = len(rounds) - 1, list(sliced(len(rounds), x)), None if shared is None else x
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
        results = computed(products, w[number], place.places, rows)
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
