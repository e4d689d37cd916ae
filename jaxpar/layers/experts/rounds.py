"""Tokens to the ranks of their experts and back, in bounded memory and without dropping one.

A rank's tokens are cut into *slices*, so that one slice is sent while the experts work on another. In a *round* as many
assignments of a slice as there is room for (`parallel.experts.capacity` times an even share) are moved to the ranks of
their experts, computed, and their results moved back. One round is enough unless the load is uneven. How many are
needed is the maximum over all ranks, so that every rank runs equally many; those after the first are a loop, which
saves nothing for the backward and takes no memory while it is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.core import eval_jaxpr
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxpar.layers.experts.exchange import Exchange
from jaxpar.layers.experts.messages import FURTHER_ROUNDS
from jaxpar.layers.experts.routing import STREAM_AXES
from jaxpar.layers.experts.rows import Lists, Places, Window, collect, rounds_of, spread, window_of
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import reduce_max
from jaxpar.mesh.parameters import Arrays
from jaxpar.mesh.quantized.tokens import sent
from jaxpar.runtime.observed import Maxima, for_each_use
from pallas_kernels.vjp_parts import custom_vjp

INPUT = "expert_input"
"""The activation that rows are as they arrive. Copies in the order of experts are more rows, and recomputed from it."""


class Operands(NamedTuple):
    """The operands of the products of rows."""

    weights: Arrays
    """Inputs of the products, with further numbers of the layer."""
    observed: Mapping[str, Maxima]
    """Zeros, by group of matmuls, whose cotangents are statistics of its tensors over slices and rounds, where they are
    asked for."""

    def for_each_use(self, uses: int) -> list[Operands]:
        """The operands of each of several products; their statistics are joined."""
        each = {group: for_each_use(zeros, uses) for group, zeros in self.observed.items()}
        return [self._replace(observed={group: zeros[use] for group, zeros in each.items()}) for use in range(uses)]


class Layer(NamedTuple):
    """Functions of a layer's experts."""

    exchange: Exchange
    products: Callable[[Operands, jax.Array, jax.Array, jax.Array], jax.Array]
    """(operands, rows in the order of this rank's experts, weight of each row, rows of each expert) -> rows; where
    tensor ranks split the experts, partial sums."""
    shared: Callable[..., jax.Array] | None
    """(tokens, *constants) -> what experts that all tokens use add to them."""

    def multiplied(self, w: Operands, places: Places, rows: jax.Array) -> jax.Array:
        """Sum over the experts of each source of `places`, from the rows in their order."""
        return collect(self.products(w, rows, places.weights, places.sizes), places.take, places.back)

    def received(self, w: Operands, places: Places, rows: jax.Array) -> jax.Array:
        """Sum of the results of each received row's experts on this rank."""
        return self.multiplied(w, places, spread(checkpoint_name(rows, INPUT), places.take, places.back))

    def local(self, w: Operands, places: Places, x: jax.Array) -> jax.Array:
        """Sum of the results of each token's experts on this rank, without a message."""
        return self.multiplied(w, places, sent(self.exchange.dtype, spread, x, places.take, places.back))


class Inputs(NamedTuple):
    """Arrays that the results are differentiated by."""

    w: Operands
    x: Float[Array, "tokens embed"]
    gates: Float[Array, "tokens chosen"]
    """Weights of the choices."""
    constants: Sequence[jax.Array]
    """The constants of `Layer.shared`."""


def stacked_lists(
    exchange: Exchange, slices: int, indices: Int[Array, "tokens chosen"], valid: Bool[Array, " tokens"]
) -> Lists:
    """The lists of each slice of a rank's tokens, stacked."""
    return jax.vmap(exchange.lists)(_sliced(slices, indices), _sliced(slices, valid))


def exchanged(
    exchange: Exchange,
    products: Callable[[Operands, jax.Array, jax.Array, jax.Array], jax.Array],
    w: Operands,
    x: Float[Array, "tokens embed"],
    gates: Float[Array, "tokens chosen"],
    lists: Lists,
    shared: Callable[[jax.Array], jax.Array] | None = None,
) -> tuple[Float[Array, "tokens embed"], Float[Array, ""], Int[Array, ""]]:
    """(the sums over each token's experts, how many assignments this rank has handled, rounds).

    The sums include what `shared` computes of all tokens, in slices beside the return of the last one.
    """
    constants: Sequence[jax.Array] = ()
    if shared is not None:
        # No function with a derivative of its own may close over traced values, integers included.
        program = jax.make_jaxpr(shared)(x)
        constants = program.consts
        shared = lambda x, *constants: eval_jaxpr(program.jaxpr, constants, x)[0]
    fits = lists.position[0].size <= exchange.room and len(lists.position[0]) <= exchange.rows
    run = _first_round if fits else _all_rounds
    (y, beside), (handled, rounds) = run(Layer(exchange, products, shared), Inputs(w, x, gates, constants), lists)
    y = y.reshape(x.shape)
    return y if beside is None else y + beside, handled, reduce_max(rounds, STREAM_AXES) if fits else rounds


def _sliced(slices: int, x: jax.Array) -> jax.Array:
    return x.reshape(slices, -1, *x.shape[1:])


type _Results = tuple[
    tuple[Float[Array, "slices tokens embed"], Float[Array, "tokens embed"] | None], tuple[PyTree, PyTree]
]
"""((the sums of each slice, what is added to them), (assignments that this rank has handled, rounds))."""


def _first_round(layer: Layer, inputs: Inputs, lists: Lists) -> _Results:
    """The results of the first round of each slice, and the rounds that this rank's lists need.

    A slice is sent, and the results of another return, while the experts work on a third. A rank's rows for its experts
    are computed while the first one is sent, where they are apart.

    An `optimization_barrier` makes the three end before the next ones begin. Its derivative is the same of the
    gradients: backward, results are sent and gradients of tokens return beside the products of a slice. That after
    local rows makes gradients of tokens of the second slice return beside products of gradients of the first one's
    rows, which leaves those of all matrices to the last message, and `needed` be sent beside products.
    """
    exchange, (w, x, gates, constants) = layer.exchange, inputs
    last = len(lists.order) - 1
    gates = _sliced(last + 1, gates)
    window = jax.vmap(lambda of_slice: window_of(of_slice, 0, exchange.room, exchange.rows))(lists)
    to_send, local = exchange.apart(window, gates)
    places = exchange.announce(to_send, gates)
    if local is not None:  # one list of all is empty
        places = places._replace(take=places.take[:, : -exchange.room], weights=places.weights[:, : -exchange.room])
    each = [jax.tree.map(lambda leaf: leaf[index], (to_send, places)) for index in range(last + 1)]  # noqa: B023
    needed = jnp.max(jax.vmap(lambda of_slice: rounds_of(of_slice, exchange.rows))(lists))
    *of_slices, of_local = w.for_each_use(last + 2)
    xs, behind = list(_sliced(last + 1, x)), None if layer.shared is None else x
    rows: PyTree = exchange.dispatch(each[0][0], xs[0])
    ys: list[jax.Array] = []
    results: PyTree = None
    added = None
    if local is not None:
        added = layer.local(of_local, local, x)
        rows, xs[1:], added, needed = lax.optimization_barrier((rows, xs[1:], added, needed))
    for index, (_, products_at) in enumerate(each):
        ahead = exchange.dispatch(each[index + 1][0], xs[index + 1]) if index < last else None
        if index:
            ys.append(exchange.combine(each[index - 1][0], results))
        results = layer.received(of_slices[index], products_at, rows)
        if last:
            ahead, results, ys, xs, behind = lax.optimization_barrier((ahead, results, ys, xs, behind))
        rows = ahead
    y = exchange.combine(each[last][0], results)
    if layer.shared is not None:
        beside = layer.shared(behind, *constants)
        y, beside = lax.optimization_barrier((y, beside)) if last else (y, beside)
        added = beside if added is None else beside + added
    handled = jnp.sum(window.assignments >= 0).astype(jnp.float32)
    return (jnp.stack([*ys, y]), added), (handled, needed)


# ---- rounds after the first


@custom_vjp(0)
def _all_rounds(layer: Layer, inputs: Inputs, lists: Lists) -> _Results:
    """`_first_round` with the sums of all rounds.

    Backward, gradients of the rounds after the first are added to its gradients in place. With a sum of their own, XLA
    would fill buffers like all matrices with zeros, copy them into the loop and add them, also where the loop does not
    run.
    """
    return _add_later_rounds(layer, inputs, lists, *_first_round(layer, inputs, lists))


def _add_later_rounds(layer: Layer, inputs: Inputs, lists: Lists, sums: PyTree, counts: PyTree) -> _Results:
    """The results of the first round with those of the others."""
    (y, added), (handled, needed) = sums, counts
    rounds = reduce_max(needed, STREAM_AXES)  # so that no rank waits for another in the loop
    slices = len(lists.order)
    x, gates = _sliced(slices, inputs.x), _sliced(slices, inputs.gates)

    def step(index: jax.Array, window: Window, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y, handled = carry
        result = _later_round(layer, window, inputs.w, _slice_at(x, index), _slice_at(gates, index))
        return _with_added(y, result, index), handled + jnp.sum(window.assignments >= 0)

    y, handled = _rest(layer.exchange, lists, rounds, step, (y, handled))
    return (y, added), (handled, rounds)


def _forward(layer: Layer, inputs: Inputs, lists: Lists) -> tuple[_Results, tuple[PyTree, ...]]:
    first, pullback, counts = jax.vjp(lambda inputs: _first_round(layer, inputs, lists), inputs, has_aux=True)
    results = _add_later_rounds(layer, inputs, lists, first, counts)
    return results, (pullback, inputs, lists, results[1][1])


def _backward(layer: Layer, saved: tuple[PyTree, ...], cotangents: PyTree) -> tuple[Inputs, None]:
    pullback, inputs, lists, rounds = saved
    (dy, dadded), _ = cotangents
    (first,) = pullback((dy, dadded))
    slices = len(lists.order)
    x, gates = _sliced(slices, inputs.x), _sliced(slices, inputs.gates)

    def step(index: jax.Array, window: Window, total: PyTree) -> PyTree:
        once = jax.checkpoint(partial(_later_round, layer, window), prevent_cse=False)
        dw, dx, dgates = jax.vjp(once, inputs.w, _slice_at(x, index), _slice_at(gates, index))[1](_slice_at(dy, index))
        weights = jax.tree.map(lambda a, b: a + b.astype(jnp.float32), total[0].weights, dw.weights)
        observed = jax.tree.map(jnp.maximum, total[0].observed, dw.observed)
        return Operands(weights, observed), _with_added(total[1], dx, index), _with_added(total[2], dgates, index)

    wide = first.w._replace(weights=jax.tree.map(lambda a: a.astype(jnp.float32), first.w.weights))
    total = wide, _sliced(slices, first.x), _sliced(slices, first.gates)
    dw, dx, dgates = _rest(layer.exchange, lists, rounds, step, total)
    dw = jax.tree.map(lambda a, like: a.astype(like.dtype), dw, inputs.w)
    return first._replace(w=dw, x=dx.reshape(inputs.x.shape), gates=dgates.reshape(inputs.gates.shape)), None


_all_rounds.defvjp(_forward, _backward)


def _rest(exchange: Exchange, lists: Lists, rounds: jax.Array, step: Callable[..., PyTree], carry: PyTree) -> PyTree:
    """`carry` after `step(slice, window, carry)` for each slice in each round but the first."""
    slices = len(lists.order)

    def run(turn: jax.Array, carry: PyTree) -> PyTree:
        index, round = turn % slices, 1 + turn // slices
        window = window_of(_slice_at(lists, index), round, exchange.rows, exchange.rows)
        return vary(step(index, window, carry))

    with jax.named_scope(FURTHER_ROUNDS):
        return lax.fori_loop(vary(jnp.int32(0)), vary((rounds - 1) * slices), run, vary(carry))


def _later_round(
    layer: Layer, window: Window, w: Operands, x: Float[Array, "tokens embed"], gates: Float[Array, "tokens chosen"]
) -> Float[Array, "tokens embed"]:
    """The sums of a later round of one slice."""
    stacked = layer.exchange.announce(jax.tree.map(lambda leaf: leaf[None], window), gates[None])
    places = jax.tree.map(lambda leaf: leaf[0], stacked)
    return layer.exchange.combine(window, layer.received(w, places, layer.exchange.dispatch(window, x)))


def _slice_at(stack: PyTree, index: jax.Array) -> PyTree:
    """The arrays of one slice."""
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False), stack)


def _with_added(stack: jax.Array, part: jax.Array, index: jax.Array) -> jax.Array:
    """`stack` with `part` added to the array of one slice."""
    return lax.dynamic_update_index_in_dim(stack, _slice_at(stack, index) + part.astype(stack.dtype), index, 0)
