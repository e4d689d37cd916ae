"""Rings over tensor ranks: what is gathered or summed passes from rank to rank, beside the matmuls of what has arrived.

XLA would move all sends to one place and wait for them. An `optimization_barrier` around a send and the matmuls beside
it makes both end before the next send begins, so the latency-hiding scheduler starts the send first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from pallas_kernels.varying import vary_over, varying_axes

type ArrayTuple = tuple[jax.Array, ...]
type ArrayList = list[jax.Array]
type Sums = ArrayList | None
"""Sums so far; None before the first addend."""

type Cotangent = jax.Array | SymbolicZero
"""A gradient of an output; symbolic where the output is not used."""


class Place(NamedTuple):
    """Where a chunk belongs in the joined sequence."""

    first: jax.Array
    tokens: int

    def of(self, xs: Sequence[jax.Array]) -> ArrayList:
        """The chunk of each array of the whole sequence."""
        return [lax.dynamic_slice_in_dim(x, self.first, self.tokens, axis=1) for x in xs]


class Ring(NamedTuple):
    """A chunk of each rank's part, on its way round the tensor ranks."""

    chunk: int
    tokens: int
    """Tokens of the chunk."""
    part: int
    """Tokens of a whole part."""
    by: Literal[1, -1]
    """How many ranks further it is sent."""

    def behind(self, ranks: int) -> Place:
        """The chunk of the rank from which so many sends lead to this one."""
        rank = (lax.axis_index("tensor") - ranks * self.by) % lax.axis_size("tensor")
        return Place(rank * self.part + self.chunk * self.tokens, self.tokens)

    def own(self, x: jax.Array) -> jax.Array:
        """The chunk of this rank's part."""
        return lax.slice_in_dim(x, self.chunk * self.tokens, (self.chunk + 1) * self.tokens, axis=1)

    def send(self, x: jax.Array, collective: str) -> jax.Array:
        """The array that the rank before this one sends."""
        ranks = lax.axis_size("tensor")
        with jax.named_scope(collective):
            return lax.ppermute(x, "tensor", [(rank, (rank + self.by) % ranks) for rank in range(ranks)])


def rings_of(part: int, chunks: int) -> list[Ring]:
    """Every second chunk goes the other way round."""
    assert part % chunks == 0, f"{part} tokens of a rank in {chunks} chunks"
    return [Ring(chunk, part // chunks, part, -1 if chunk % 2 else 1) for chunk in range(chunks)]


def gather_round[State](
    rings: list[Ring], x: jax.Array, visit: Callable[[jax.Array, Place, State], tuple[State, ArrayList]], state: State
) -> tuple[State, ArrayList]:
    """The chunks of `x` pass round, and `visit(chunk, its place, state)` gives (state, results) beside each send; each
    of the results is joined for the whole sequence."""
    held, results = [ring.own(x) for ring in rings], []
    for left in reversed(range(lax.axis_size("tensor"))):
        for ring in rings:
            chunk, place = held[ring.chunk], ring.behind(lax.axis_size("tensor") - 1 - left)
            state, result = visit(chunk, place, state)
            if left:
                held[ring.chunk] = ring.send(chunk, "gather_sequence")
                held, state, result = lax.optimization_barrier((held, state, result))
            results.append([(place, own) for own in result])
    length = x.shape[1] * lax.axis_size("tensor")
    return state, [_joined(parts, length) for parts in zip(*results, strict=True)]


def _joined(parts: Sequence[tuple[Place, jax.Array]], length: int) -> jax.Array:
    """Chunks of the whole sequence as one array."""
    like = parts[0][1]
    joined = vary_over(lax.empty((like.shape[0], length, *like.shape[2:]), like.dtype), varying_axes(like))
    for place, chunk in parts:
        joined = lax.dynamic_update_slice_in_dim(joined, chunk, place.first, axis=1)
    return joined


def scatter_round(rings: list[Ring], xs: list[jax.Array], products: Callable[..., jax.Array]) -> jax.Array:
    """`products(chunk of each of xs, addend)` summed over all ranks: each sum passes round, to the rank of its chunk.

    With two chunks, one is sent while the products of the other are computed and added to what has arrived. With one
    chunk, what arrives is added to the products that were computed beside it.
    """
    sums: list[Any] = [None] * len(rings)
    sending: Ring | None = None
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
    return _own_part(rings, sums)


def _own_part(rings: list[Ring], chunks: list[Any]) -> jax.Array:
    """A rank's part of the sequence from its chunks [batch * tokens, embed]."""
    each = zip(rings, chunks, strict=True)
    return jnp.concatenate([chunk.reshape(-1, ring.tokens, chunk.shape[-1]) for ring, chunk in each], axis=1)


def gather_and_scatter[T](
    rings: list[Ring], x: jax.Array, dys: list[jax.Array], dgrad: Callable[..., jax.Array], wgrad: Callable[..., T]
) -> tuple[jax.Array, T | None]:
    """(`x`'s part of `dgrad(dys, addend)` summed over the ranks, sum of `wgrad(x, dys, sums)` over all chunks).

    The chunks of `x` are sent beside dgrad, and the sums of dgrad beside wgrad. Both go the same way round, so that the
    chunk of `dys` that dgrad takes is that which wgrad takes one send later.
    """
    held, sums = [ring.own(x) for ring in rings], None
    totals: list[Any] = [None] * len(rings)
    before = [ring.behind(0).of(dys) for ring in rings]
    for left in reversed(range(lax.axis_size("tensor"))):
        for ring in rings:
            chunk, of_chunk, before[ring.chunk] = held[ring.chunk], before[ring.chunk], ring.behind(-left).of(dys)
            new = dgrad(before[ring.chunk], totals[ring.chunk])
            if left:
                held[ring.chunk] = ring.send(chunk, "gather_sequence")
                held, new, of_chunk = lax.optimization_barrier((held, new, of_chunk))
            sums = wgrad(chunk, of_chunk, sums)
            if left:
                new = ring.send(new, "scatter_sequence")
                new, held, sums, before, dys = lax.optimization_barrier((new, held, sums, before, dys))
            totals[ring.chunk] = new
    return _own_part(rings, totals), sums


# ---- derivatives


@jax.tree_util.register_static
@dataclass(frozen=True)
class Asked:
    """The arguments that a derivative is asked for: a split backward asks for one half at a time."""

    inputs: bool
    weights: tuple[bool, ...]

    def of[Leaf](self, weights: Sequence[Leaf]) -> list[Leaf]:
        """The weights, or what belongs to each, that have gradients."""
        return [own for own, asked in zip(weights, self.weights, strict=True) if asked]

    def gradients(self, sums: Sums, weights: Sequence[jax.Array]) -> tuple[jax.Array | None, ...]:
        """Cotangents of all weights, from the sums for those that have gradients."""
        each, pairs = iter(sums or ()), zip(weights, self.weights, strict=True)
        return tuple(next(each).astype(w.dtype) if asked else None for w, asked in pairs)


def asked_of[Inputs, Weights](inputs: Inputs, weights: Weights) -> tuple[Asked, Inputs, Weights]:
    """(what is asked for, values of inputs, values of weights), of the arguments of a forward with symbolic zeros."""
    is_leaf = lambda leaf: hasattr(leaf, "perturbed")
    perturbed = lambda tree: [leaf.perturbed for leaf in jax.tree.leaves(tree, is_leaf=is_leaf)]
    values = lambda tree: jax.tree.map(lambda leaf: leaf.value, tree, is_leaf=is_leaf)
    return Asked(any(perturbed(inputs)), tuple(perturbed(weights))), values(inputs), values(weights)


def instantiated(dy: Cotangent, like: jax.Array) -> jax.Array:
    """A cotangent as an array, which varies over the axes of `like`."""
    if isinstance(dy, SymbolicZero):
        return vary_over(jnp.zeros(dy.shape, like.dtype), varying_axes(like))
    return dy
