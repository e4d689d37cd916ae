"""Rounds of an exchange after the first: a loop with a derivative of its own, which keeps nothing.

The loop takes no memory while no slice needs a second round (`jaxpar.layers.experts.rounds`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.layers.experts.exchange import Exchange
from jaxpar.layers.experts.messages import FURTHER_ROUNDS
from jaxpar.layers.experts.products import Operands, Products, computed, sliced
from jaxpar.layers.experts.rows import Lists, Window, window_of
from jaxpar.mesh.axes import vary
from jaxpar.mesh.parameters import Arrays
from pallas_kernels.vjp_parts import custom_vjp


class _Turn(NamedTuple):
    """A later round of one slice."""

    slice: jax.Array
    round: jax.Array

    def of(self, tree: Any) -> Any:
        """The part of `tree` that belongs to the slice."""
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
    return exchange.combine(window, computed(products, w, places, exchange.dispatch(window, x)))


class Later(NamedTuple):
    """Zeros that lead from `summed_with_later` to `with_rest`. Their cotangents come back with what the former's
    backward needs of the latter: gradients of the first round's sums are those of later rounds too."""

    y: Float[Array, "slices tokens embed"]
    rounds: Float[Array, ""]
    """A whole number: cotangents of integers do not exist."""


@custom_vjp(0, 1)
def with_rest(
    exchange: Exchange,
    products: Products,
    y: Float[Array, "slices tokens embed"],
    handled: Float[Array, ""],
    w: Operands,
    x: Float[Array, "tokens embed"],
    gates: Float[Array, "tokens chosen"],
    lists: Lists,
    rounds: jax.Array,
    later: Later,
) -> tuple[Float[Array, "slices tokens embed"], Float[Array, ""]]:
    """`y` with the sums of all rounds but the first added, and `handled` with the assignments of these."""
    del later
    slices = len(y)
    x, gates = sliced(slices, x), sliced(slices, gates)

    def step(turn: _Turn, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y, handled = carry
        window = window_of(turn.of(lists), turn.round, exchange.rows, exchange.rows)
        y = turn.add(y, _turn(exchange, products, window, w, turn.of(x), turn.of(gates)))
        return y, handled + jnp.sum(window.assignments >= 0)

    return _turns(slices, rounds, step, (y, handled))


def _rest_forward(exchange: Exchange, products: Products, *arguments: Any) -> tuple[Any, jax.Array]:
    *_, rounds, _ = arguments
    return with_rest(exchange, products, *arguments), rounds


def _rest_backward(exchange: Exchange, products: Products, rounds: jax.Array, cotangents: Any) -> tuple[Any, ...]:
    del exchange, products
    dy, dhandled = cotangents
    later = Later(*vary((dy, rounds.astype(jnp.float32))))
    return dy, dhandled, None, None, None, None, None, later


with_rest.defvjp(_rest_forward, _rest_backward)


@custom_vjp(0, 1)
def summed_with_later(
    exchange: Exchange,
    products: Products,
    w: Operands,
    x: Float[Array, "tokens embed"],
    gates: Float[Array, "tokens chosen"],
    lists: Lists,
) -> tuple[Arrays, jax.Array, jax.Array, Later]:
    """(weights, `x`, `gates`) of the first rounds, unchanged, and zeros that lead to `with_rest`.

    Backward, gradients of the rounds after the first are added to theirs in place. With a sum of their own, XLA would
    fill buffers like all matrices with zeros, copy them into the loop and add them, also where the loop does not run.
    """
    del exchange, products
    sums = jnp.zeros((len(lists.order), len(x) // len(lists.order), x.shape[1]), x.dtype)
    return w.weights, x, gates, Later(*vary((sums, jnp.float32(0))))


def _summed_forward(exchange: Exchange, products: Products, *arguments: Any) -> tuple[Any, tuple[Any, ...]]:
    return summed_with_later(exchange, products, *arguments), arguments


def _summed_backward(exchange: Exchange, products: Products, kept: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
    w, x, gates, lists = kept
    dw, dx, dgates, later = cotangents
    slices = len(lists.order)
    x_of, gates_of = sliced(slices, x), sliced(slices, gates)

    def step(turn: _Turn, total: Any) -> Any:
        window = window_of(turn.of(lists), turn.round, exchange.rows, exchange.rows)
        own = partial(_turn, exchange, products, window)
        _, pullback = jax.vjp(jax.checkpoint(own, prevent_cse=False), w, turn.of(x_of), turn.of(gates_of))
        dw, dx, dgates = pullback(turn.of(later.y))
        sums = jax.tree.map(lambda a, b: a + b.astype(jnp.float32), total[0].weights, dw.weights)
        seen = {group: jnp.maximum(own, dw.observed[group]) for group, own in total[0].observed.items()}
        return Operands(sums, seen), turn.add(total[1], dx), turn.add(total[2], dgates)

    sums: Any = jax.tree.map(lambda a: a.astype(jnp.float32), dw)
    first = Operands(sums, jax.tree.map(jnp.zeros_like, w.observed)), sliced(slices, dx), sliced(slices, dgates)
    total, dx, dgates = _turns(slices, later.rounds.astype(jnp.int32), step, first)
    dw = jax.tree.map(lambda a, like: a.astype(like.dtype), total, w)
    return dw, dx.reshape(x.shape), dgates.reshape(gates.shape), None


summed_with_later.defvjp(_summed_forward, _summed_backward)
