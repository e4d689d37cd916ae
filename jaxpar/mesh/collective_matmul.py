"""Collective matmuls: the gather or the scatter of the sequence over tensor ranks, and the matmuls next to it.

`plain` runs the collective whole, before or after the matmuls. `ring` cuts both: a part of the sequence passes from
rank to rank, and while it is sent, the matmuls of the part that has arrived run. Neither the joined sequence nor the
partial sums of all ranks then exist whole. The derivatives are rings, too:

- `matmul_scatter`, backward: the gradient of the output passes round, beside both gradients of the part at hand.
- `gather_matmul`, backward: the input passes round a second time, beside the gradient of the input (dgrad); partial
  sums of that gradient pass round the other way, beside the gradient of the weights (wgrad). These are the independent
  pairs of Kwai's system (USENIX ATC'24); the ring of a dependent pair is that of arXiv:2302.05442 and of
  asynchronous tensor parallelism in PyTorch.

XLA would move all sends to one place and wait for them. An `optimization_barrier` around a send and the matmuls beside
it makes both end before the next send begins, so the latency-hiding scheduler starts the send first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Shaped

from jaxpar.config.plan import TensorOverlap
from jaxpar.mesh.collectives import gather_sequence, must_vary, scatter_sequence
from pallas_kernels.varying import vary_alike, vary_over, varying_axes

PLAIN = TensorOverlap()
"""Collectives before and after whole matmuls."""


def gather_matmul(
    x: Shaped[Array, "batch part *inputs"], weights: Sequence[Shaped[Array, "..."]], overlap: TensorOverlap = PLAIN
) -> tuple[Shaped[Array, "batch seq ..."], ...]:
    """`gather_sequence(x)` times each of `weights` [*inputs, *outputs].

    Sends `x * (n - 1)` bytes with n = tensor. Backward with respect to `x` and `weights`, twice as many: the input
    again, if it was not kept, and sums of its gradient.
    """
    must_vary(x, ("tensor",), "gather_matmul")
    if overlap.algorithm == "plain":
        joined = gather_sequence(x)
        return tuple(product(joined, w) for w in weights)
    return _gather_matmul(overlap.chunks, *vary_alike((x, tuple(weights))))


def matmul_scatter(
    xs: Sequence[Shaped[Array, "batch seq ..."]],
    weights: Sequence[Shaped[Array, "..."]],
    overlap: TensorOverlap = PLAIN,
) -> Shaped[Array, "batch part *outputs"]:
    """`scatter_sequence` of the sum of the products of `xs` [batch, seq, *inputs] and `weights` [*inputs, *outputs].

    Sends `x * (n - 1) / n` bytes with n = tensor and x the bytes of a product. The backward sends as many.
    """
    must_vary(xs[0], ("tensor",), "matmul_scatter")
    if overlap.algorithm == "plain":
        return scatter_sequence(_sum([product(x, w) for x, w in zip(xs, weights, strict=True)]))
    return _matmul_scatter(overlap.chunks, *vary_alike((tuple(xs), tuple(weights))))


def product(x: Shaped[Array, "batch seq *inputs"], w: Shaped[Array, "..."]) -> Shaped[Array, "batch seq *outputs"]:
    """`x` times a matrix `w` [*inputs, *outputs]."""
    return jnp.tensordot(x, w, x.ndim - 2)


# ---- one way round


class _Place(NamedTuple):
    """Where a chunk belongs in the joined sequence."""

    first: jax.Array
    tokens: int

    def of(self, xs: Sequence[jax.Array]) -> list[jax.Array]:
        """The chunk of each array of the whole sequence."""
        return [lax.dynamic_slice_in_dim(x, self.first, self.tokens, axis=1) for x in xs]


class _Ring(NamedTuple):
    """A chunk of each rank's part, on its way round the tensor ranks."""

    chunk: int
    tokens: int
    """Of the chunk."""
    part: int
    """Tokens of a whole part."""
    by: Literal[1, -1]
    """How many ranks further it is sent."""

    def behind(self, ranks: int) -> _Place:
        """The chunk of the rank from which so many sends lead to this one."""
        rank = (lax.axis_index("tensor") - ranks * self.by) % lax.axis_size("tensor")
        return _Place(rank * self.part + self.chunk * self.tokens, self.tokens)

    def own(self, x: jax.Array) -> jax.Array:
        """The chunk of this rank's part."""
        return lax.slice_in_dim(x, self.chunk * self.tokens, (self.chunk + 1) * self.tokens, axis=1)

    def send(self, x: jax.Array, collective: str) -> jax.Array:
        """What the rank before this one sends."""
        ranks = lax.axis_size("tensor")
        with jax.named_scope(collective):
            return lax.ppermute(x, "tensor", [(rank, (rank + self.by) % ranks) for rank in range(ranks)])


def _rings(part: int, chunks: int) -> list[_Ring]:
    """Every second chunk goes the other way round."""
    assert part % chunks == 0, f"{part} tokens of a rank in {chunks} chunks"
    return [_Ring(chunk, part // chunks, part, -1 if chunk % 2 else 1) for chunk in range(chunks)]


def _gather[State](
    rings: list[_Ring], x: jax.Array, visit: Callable[[jax.Array, _Place, State], tuple[State, Any]], state: State
) -> tuple[State, list[tuple[_Place, Any]]]:
    """The chunks of `x` pass round, and `visit(chunk, its place, state)` gives (state, result) beside each send."""
    held, results = [ring.own(x) for ring in rings], []
    for left in reversed(range(lax.axis_size("tensor"))):
        for ring in rings:
            chunk, place = held[ring.chunk], ring.behind(lax.axis_size("tensor") - 1 - left)
            state, result = visit(chunk, place, state)
            if left:
                held[ring.chunk] = ring.send(chunk, "gather_sequence")
                held, state, result = lax.optimization_barrier((held, state, result))
            results.append((place, result))
    return state, results


def _scatter(rings: list[_Ring], xs: Any, products: Callable[[Any, Any], jax.Array]) -> jax.Array:
    """`products(chunk of each of xs, addend)` summed over all ranks: each sum passes round, to the rank of its chunk.

    With two chunks, one is sent while the products of the other are computed and added to what has arrived. With one
    chunk, what arrives is added to the products that were computed beside it.
    """
    sums: list[Any] = [None] * len(rings)
    sending: _Ring | None = None
    for left in reversed(range(lax.axis_size("tensor"))):
        for ring in rings:
            arrived = sums[ring.chunk] if sending is not ring else None
            later = arrived is None and sums[ring.chunk] is not None
            new = products(ring.behind(-left).of(xs), arrived)
            if sending is not None:
                sent = sending.send(sums[sending.chunk], "scatter_sequence")
                sums[sending.chunk], new, xs = lax.optimization_barrier((sent, new, xs))
            if later:
                new = sums[ring.chunk] + new
            if later or sending is None:  # no product is computed before what is sent beside it can be sent
                new, xs = lax.optimization_barrier((new, xs))
            sums[ring.chunk], sending = new, ring if left else None
    return _part(rings, sums)


def _part(rings: list[_Ring], chunks: list[Any]) -> jax.Array:
    """A rank's part of the sequence from its chunks [batch * tokens, embed]."""
    return jnp.concatenate(
        [chunk.reshape(-1, ring.tokens, chunk.shape[-1]) for ring, chunk in zip(rings, chunks, strict=True)], axis=1
    )


def _joined(parts: list[tuple[_Place, jax.Array]], length: int) -> jax.Array:
    """Chunks of the whole sequence as one array."""
    like = parts[0][1]
    whole = vary_over(lax.empty((like.shape[0], length, *like.shape[2:]), like.dtype), varying_axes(like))
    for place, chunk in parts:
        whole = lax.dynamic_update_slice_in_dim(whole, chunk, place.first, axis=1)
    return whole


# ---- products of a chunk


def _sum(each: Sequence[jax.Array]) -> jax.Array:
    return sum(each[1:], each[0])


def _rows(x: jax.Array) -> jax.Array:
    """As the operand of a matmul, which adds to an array only where the array, too, has two dims."""
    return x.reshape(x.shape[0] * x.shape[1], -1)


def _matrix(w: jax.Array, inputs: int) -> jax.Array:
    return w.reshape(prod(w.shape[:inputs]), -1)


def _input_gradient(
    dys: Sequence[jax.Array], weights: Sequence[jax.Array], inputs: int, addend: jax.Array | None = None
) -> jax.Array:
    """[batch * tokens, inputs], of the common input of `weights`, whose first `inputs` dims it has, plus `addend`."""
    each = [_rows(dy) @ _matrix(w, inputs).T for dy, w in zip(dys, weights, strict=True)]
    return _sum(each if addend is None else [addend, *each])


def _weight_gradients(pairs: Sequence[tuple[jax.Array, jax.Array]], sums: Any) -> list[jax.Array]:
    """Float32 gradients of weights, from (input, gradient of the output) of each, added to `sums` unless None."""
    found: list[jax.Array] = []
    for number, (x, dy) in enumerate(pairs):
        if found:  # XLA would join the matmuls of one input, and then cannot add to the sums in them
            x, found[-1] = lax.optimization_barrier((x, found[-1]))
        new = lax.dot_general(x, dy, (((0, 1), (0, 1)), ((), ())), preferred_element_type=jnp.float32)
        found.append(new if sums is None else sums[number] + new)
    return found


# ---- derivatives


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Asked:
    """Of which arguments a derivative is asked for: a split backward asks for one half at a time."""

    inputs: bool
    weights: tuple[bool, ...]

    def of[Leaf](self, weights: Sequence[Leaf]) -> list[Leaf]:
        """Those of the weights, or of what belongs to each, that have gradients."""
        return [own for own, asked in zip(weights, self.weights, strict=True) if asked]

    def gradients(self, sums: list[jax.Array] | None, weights: Sequence[jax.Array]) -> tuple[jax.Array | None, ...]:
        """Cotangents of all weights, from the sums for those that have gradients."""
        each = iter(sums or ())
        return tuple(
            next(each).astype(w.dtype) if asked else None for w, asked in zip(weights, self.weights, strict=True)
        )


def _asked(inputs: Any, weights: Any) -> tuple[_Asked, Any, Any]:
    """(what is asked for, values of inputs, values of weights), of the arguments of a forward with symbolic zeros."""
    is_leaf = lambda leaf: hasattr(leaf, "perturbed")
    perturbed = lambda tree: [leaf.perturbed for leaf in jax.tree.leaves(tree, is_leaf=is_leaf)]
    values = lambda tree: jax.tree.map(lambda leaf: leaf.value, tree, is_leaf=is_leaf)
    return _Asked(any(perturbed(inputs)), tuple(perturbed(weights))), values(inputs), values(weights)


def _instantiated(dy: Any, like: jax.Array) -> jax.Array:
    """A cotangent as an array, which varies over the axes of `like`."""
    if isinstance(dy, SymbolicZero):
        return vary_over(jnp.zeros(dy.shape, like.dtype), varying_axes(like))
    return dy


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gather_matmul(chunks: int, x: jax.Array, weights: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    visit = lambda chunk, place, state: (state, [product(chunk, w) for w in weights])
    _, parts = _gather(_rings(x.shape[1], chunks), x, visit, None)
    length = x.shape[1] * lax.axis_size("tensor")
    return tuple(
        _joined([(place, chunks[number]) for place, chunks in parts], length) for number in range(len(weights))
    )


def _gather_matmul_forward(chunks: int, x: Any, weights: Any) -> tuple[tuple[jax.Array, ...], Any]:
    asked, x, weights = _asked(x, weights)
    return _gather_matmul(chunks, x, weights), (asked, x, weights)


def _gather_matmul_backward(chunks: int, kept: Any, dys: Any) -> tuple[Any, Any]:
    asked, x, weights = kept
    dys = [_instantiated(dy, x) for dy in dys]
    rings = _rings(x.shape[1], chunks)
    dgrad = lambda dys, arrived: _input_gradient(dys, weights, x.ndim - 2, arrived)
    wgrad = lambda x, dys, sums: _weight_gradients([(x, dy) for dy in asked.of(dys)], sums)
    if not any(asked.weights):
        return _scatter(rings, dys, dgrad), None
    if not asked.inputs:
        visit = lambda chunk, place, sums: (wgrad(chunk, place.of(dys), sums), ())
        return None, asked.gradients(_gather(rings, x, visit, None)[0], weights)
    dx, sums = _gather_and_scatter(rings, x, dys, dgrad, wgrad)
    return dx, asked.gradients(sums, weights)


def _gather_and_scatter(
    rings: list[_Ring], x: jax.Array, dys: list[jax.Array], dgrad: Callable[..., jax.Array], wgrad: Callable[..., Any]
) -> tuple[jax.Array, Any]:
    """(`x`'s part of `dgrad(dys, addend)` summed over the ranks, sum of `wgrad(x, dys, sums)` over all chunks).

    The chunks of `x` are sent beside dgrad, and the sums of dgrad beside wgrad. Both go the same way round, so that the
    chunk of `dys` that dgrad takes is that which wgrad takes one send later.
    """
    held, sums = [ring.own(x) for ring in rings], None
    totals: list[Any] = [None] * len(rings)
    before = [ring.behind(0).of(dys) for ring in rings]
    for left in reversed(range(lax.axis_size("tensor"))):
        for number, ring in enumerate(rings):
            chunk, of_chunk, before[number] = held[number], before[number], ring.behind(-left).of(dys)
            new = dgrad(before[number], totals[number])
            if left:
                held[number] = ring.send(chunk, "gather_sequence")
                held, new, of_chunk = lax.optimization_barrier((held, new, of_chunk))
            sums = wgrad(chunk, of_chunk, sums)
            if left:
                new = ring.send(new, "scatter_sequence")
                new, held, sums, before, dys = lax.optimization_barrier((new, held, sums, before, dys))
            totals[number] = new
    return _part(rings, totals), sums


_gather_matmul.defvjp(_gather_matmul_forward, _gather_matmul_backward, symbolic_zeros=True)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _matmul_scatter(chunks: int, xs: tuple[jax.Array, ...], weights: tuple[jax.Array, ...]) -> jax.Array:
    def products(xs: Any, addend: jax.Array | None) -> jax.Array:
        each = [_rows(x) @ _matrix(w, x.ndim - 2) for x, w in zip(xs, weights, strict=True)]
        return _sum(each if addend is None else [addend, *each])

    return _scatter(_rings(xs[0].shape[1] // lax.axis_size("tensor"), chunks), xs, products)


def _matmul_scatter_forward(chunks: int, xs: Any, weights: Any) -> tuple[jax.Array, Any]:
    asked, xs, weights = _asked(xs, weights)
    return _matmul_scatter(chunks, xs, weights), (asked, xs, weights)


def _matmul_scatter_backward(chunks: int, kept: Any, dy: Any) -> tuple[Any, Any]:
    asked, xs, weights = kept
    dy = _instantiated(dy, xs[0])

    def visit(chunk: jax.Array, place: _Place, sums: Any) -> tuple[Any, list[jax.Array]]:
        new = [
            _input_gradient([chunk], [w], x.ndim - 2).reshape(*chunk.shape[:2], *x.shape[2:])
            for x, w in zip(xs, weights, strict=True)
        ]
        if any(asked.weights):
            sums = _weight_gradients([(x, chunk) for x in place.of(asked.of(xs))], sums)
        return sums, new if asked.inputs else []

    sums, parts = _gather(_rings(dy.shape[1], chunks), dy, visit, None)
    gradients = asked.gradients(sums, weights)
    if not asked.inputs:
        return None, gradients
    length = xs[0].shape[1]
    return tuple(_joined([(place, each[number]) for place, each in parts], length) for number in range(len(xs))), (
        gradients
    )


_matmul_scatter.defvjp(_matmul_scatter_forward, _matmul_scatter_backward, symbolic_zeros=True)
