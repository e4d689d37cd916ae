"""Collective matmuls over tensor ranks: all-gathers and reduce-scatters as rings of permutes that overlap with matmuls.

XLA would schedule all permutes together and wait for them. A permute and the matmuls that overlap with it are a step;
an `optimization_barrier` ends each step, and within a step the latency-hiding scheduler starts the permute first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import PyTree

from pallas_kernels.varying import vary_over, varying_axes

type ArrayTuple = tuple[jax.Array, ...]
type ArrayList = list[jax.Array]
type Sums = ArrayList | None
"""Sums so far; None before the first addend."""

type Cotangent = jax.Array | SymbolicZero
"""Cotangent of an output; a `SymbolicZero` where the output is not used."""


class ChunkSlice(NamedTuple):
    """The tokens of a chunk in the full sequence."""

    start: jax.Array
    tokens: int

    def select(self, xs: Sequence[jax.Array]) -> ArrayList:
        """The chunk of each of some arrays of the full sequence."""
        return [lax.dynamic_slice_in_dim(x, self.start, self.tokens, axis=1) for x in xs]


class Ring(NamedTuple):
    """The ring in which chunk number `chunk` of every rank's sequence shard circulates."""

    chunk: int
    """Index of the chunk in its shard."""
    tokens: int
    """Tokens of the chunk."""
    shard_tokens: int
    """Tokens of a rank's sequence shard."""
    direction: Literal[1, -1]
    """Each rank sends to the next rank (1) or to the one before it (-1)."""

    def upstream(self, hops: int) -> ChunkSlice:
        """The slice of the full sequence that the rank `hops` ranks upstream holds (downstream, if negative)."""
        rank = (lax.axis_index("tensor") - hops * self.direction) % lax.axis_size("tensor")
        return ChunkSlice(rank * self.shard_tokens + self.chunk * self.tokens, self.tokens)

    def local(self, x: jax.Array) -> jax.Array:
        """The chunk of this rank's shard."""
        return lax.slice_in_dim(x, self.chunk * self.tokens, (self.chunk + 1) * self.tokens, axis=1)

    def shift(self, x: jax.Array, collective: str) -> jax.Array:
        """The `x` of the upstream neighbour: one permute."""
        ranks = lax.axis_size("tensor")
        with jax.named_scope(collective):
            return lax.ppermute(x, "tensor", [(rank, (rank + self.direction) % ranks) for rank in range(ranks)])


def bidirectional_rings(shard_tokens: int, chunks: int) -> list[Ring]:
    """A ring for each chunk; odd chunks go in the reverse direction, so that both directions of the links are used."""
    assert shard_tokens % chunks == 0, f"{shard_tokens} tokens of a rank in {chunks} chunks"
    return [Ring(chunk, shard_tokens // chunks, shard_tokens, -1 if chunk % 2 else 1) for chunk in range(chunks)]


def ring_all_gather[State](
    rings: list[Ring],
    x: jax.Array,
    compute: Callable[[jax.Array, ChunkSlice, State], tuple[State, ArrayList]],
    state: State,
) -> tuple[State, ArrayList]:
    """All-gather `x` over the sequence, chunk by chunk: `compute(chunk, its slice, state)` gives (state, results) while
    the chunk is sent on. Results are concatenated over the sequence."""
    local, results = [ring.local(x) for ring in rings], []
    for remaining in reversed(range(lax.axis_size("tensor"))):
        for ring in rings:
            chunk, where = local[ring.chunk], ring.upstream(lax.axis_size("tensor") - 1 - remaining)
            state, result = compute(chunk, where, state)
            if remaining:
                local[ring.chunk] = ring.shift(chunk, "gather_sequence")
                local, state, result = lax.optimization_barrier((local, state, result))
            results.append([(where, one) for one in result])
    length = x.shape[1] * lax.axis_size("tensor")
    return state, [_joined(parts, length) for parts in zip(*results, strict=True)]


def _joined(parts: Sequence[tuple[ChunkSlice, jax.Array]], length: int) -> jax.Array:
    """Chunks of the full sequence as one array."""
    like = parts[0][1]
    joined = vary_over(lax.empty((like.shape[0], length, *like.shape[2:]), like.dtype), varying_axes(like))
    for where, chunk in parts:
        joined = lax.dynamic_update_slice_in_dim(joined, chunk, where.start, axis=1)
    return joined


def ring_reduce_scatter(rings: list[Ring], xs: list[jax.Array], matmul: Callable[..., jax.Array]) -> jax.Array:
    """Reduce-scatter of `matmul(chunk of each of xs, addend)`: the partial sum of a chunk passes through all ranks and
    ends on the rank that owns the chunk.

    With two chunks, one sum is sent while the matmul of the other chunk adds to the sum that has arrived. With one
    chunk, the matmul overlaps with the permute, and the sum that arrives is added afterwards:

        one chunk:   compute A | send A, compute A', then A' + the sum that arrived | ...
        two chunks:  compute A | send A, compute B | send B, compute A' + the sum that arrived of A | ...

    where A and B are the partial sums of two chunks for one rank, and A' is that of the first for the next rank.
    """
    sums: list[PyTree] = [None] * len(rings)
    sending: Ring | None = None
    for remaining in reversed(range(lax.axis_size("tensor"))):
        for ring in rings:
            arrived = sums[ring.chunk] if sending is not ring else None
            add_afterwards = arrived is None and sums[ring.chunk] is not None
            new = matmul(ring.upstream(-remaining).select(xs), arrived)
            if sending is not None:
                sent = sending.shift(sums[sending.chunk], "scatter_sequence")
                sums[sending.chunk], new, xs = lax.optimization_barrier((sent, new, xs))
            if add_afterwards:
                new = sums[ring.chunk] + new
            if add_afterwards or sending is None:  # the next matmul waits until this sum can be sent
                new, xs = lax.optimization_barrier((new, xs))
            sums[ring.chunk], sending = new, ring if remaining else None
    return _local_shard(rings, sums)


def _local_shard(rings: list[Ring], chunks: list[PyTree]) -> jax.Array:
    """A rank's sequence shard from its chunks [batch * tokens, embed]."""
    each = zip(rings, chunks, strict=True)
    return jnp.concatenate([chunk.reshape(-1, ring.tokens, chunk.shape[-1]) for ring, chunk in each], axis=1)


def ring_gather_and_reduce_scatter[T](
    rings: list[Ring], x: jax.Array, dys: list[jax.Array], dgrad: Callable[..., jax.Array], wgrad: Callable[..., T]
) -> tuple[jax.Array, T | None]:
    """(reduce-scatter of `dgrad(dys, addend)`, sum of `wgrad(x, dys, sums)` over the chunks of an all-gather of `x`).

    Permutes of `x` overlap with dgrad, and those of dgrad's sums with wgrad. Both go in the same direction, so wgrad
    reads the chunk of `dys` that dgrad read a step before. On rank r of 4, with one chunk for each rank:

        step           1      2      3      4
        dgrad of dy    r+3    r+2    r+1    r
        wgrad of x     r      r-1    r-2    r-3
    """
    local, sums = [ring.local(x) for ring in rings], None
    totals: list[PyTree] = [None] * len(rings)
    previous = [ring.upstream(0).select(dys) for ring in rings]
    for remaining in reversed(range(lax.axis_size("tensor"))):
        for ring in rings:
            chunk, dy_of_chunk = local[ring.chunk], previous[ring.chunk]
            previous[ring.chunk] = ring.upstream(-remaining).select(dys)
            new = dgrad(previous[ring.chunk], totals[ring.chunk])
            if remaining:
                local[ring.chunk] = ring.shift(chunk, "gather_sequence")
                local, new, dy_of_chunk = lax.optimization_barrier((local, new, dy_of_chunk))
            sums = wgrad(chunk, dy_of_chunk, sums)
            if remaining:
                new = ring.shift(new, "scatter_sequence")
                new, local, sums, previous, dys = lax.optimization_barrier((new, local, sums, previous, dys))
            totals[ring.chunk] = new
    return _local_shard(rings, totals), sums


# ---- derivatives


@jax.tree_util.register_static
@dataclass(frozen=True)
class Perturbed:
    """The arguments that need gradients: with a split backward, B needs that of inputs, and W those of weights."""

    inputs: bool
    weights: tuple[bool, ...]

    def select[Leaf](self, weights: Sequence[Leaf]) -> list[Leaf]:
        """The items of a sequence, one for each weight, whose weights need gradients."""
        return [one for one, perturbed in zip(weights, self.weights, strict=True) if perturbed]

    def gradients(self, sums: Sums, weights: Sequence[jax.Array]) -> tuple[jax.Array | None, ...]:
        """Cotangents of all weights, from the sums for those that need gradients."""
        each, pairs = iter(sums or ()), zip(weights, self.weights, strict=True)
        return tuple(next(each).astype(w.dtype) if perturbed else None for w, perturbed in pairs)


def perturbed_arguments[Inputs, Weights](inputs: Inputs, weights: Weights) -> tuple[Perturbed, Inputs, Weights]:
    """(arguments that need gradients, values of inputs, values of weights), for a forward with symbolic zeros."""
    is_leaf = lambda leaf: hasattr(leaf, "perturbed")
    perturbed = lambda tree: [leaf.perturbed for leaf in jax.tree.leaves(tree, is_leaf=is_leaf)]
    values = lambda tree: jax.tree.map(lambda leaf: leaf.value, tree, is_leaf=is_leaf)
    return Perturbed(any(perturbed(inputs)), tuple(perturbed(weights))), values(inputs), values(weights)


def instantiated(dy: Cotangent, like: jax.Array) -> jax.Array:
    """A cotangent as an array with the varying manual axes of `like`."""
    if isinstance(dy, SymbolicZero):
        return vary_over(jnp.zeros(dy.shape, like.dtype), varying_axes(like))
    return dy
