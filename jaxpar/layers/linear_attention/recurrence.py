"""The recurrence of mixers with a state, in chunks of tokens. A head has a state S [key, value]:

    S_t = exp(g_t) S_(t-1) + k_t u_t^T        u_t = v_t, or r_t (v_t - (exp(g_t) S_(t-1))^T k_t) by the delta rule
    o_t = S_t^T q_t

with a log decay g_t <= 0 for each key dim, or one for the head; a document begins with S = 0. Tokens of a chunk are
multiplied with each other, and a chunk maps the state before it affinely to the one behind it: S' = M S + N (Yang et
al. 2024, arXiv:2406.06484 and arXiv:2412.06464). Context ranks fold their tokens to M and N, from which `transports.py`
makes the state before each of them. Everything is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.config.plan import LayerLayout
from jaxpar.layers.context import TokenContext
from jaxpar.layers.linear_attention.transports import TRANSPORTS, Fold, State
from jaxpar.mesh.axes import vary
from pallas_kernels.linear_attention import CHUNK, Chunk
from pallas_kernels.linear_attention.registry import REGISTRY

BLOCK = 16
"""Tokens of a chunk between which decays of each key dim are multiplied out; further ones meet at a block's start."""


class Streams(NamedTuple):
    """Queries, keys, values and decays of this rank's tokens."""

    query: Float[Array, "batch seq heads key"]
    key: Float[Array, "batch seq heads key"]
    value: Float[Array, "batch seq heads value"]
    decay: Float[Array, "batch seq heads width"]
    """Logarithms, at most 0; the width is that of keys, or 1."""
    rate: Float[Array, "batch seq heads"] | None = None
    """The delta rule's r; None is without the rule."""


def recur(
    streams: Streams, tokens: TokenContext, layout: LayerLayout
) -> tuple[Float[Array, "batch seq heads value"], State]:
    """The outputs of this context rank's tokens, and the state behind them."""
    scan = partial(_scan, backend=layout.linear_backend)
    state, document = _before(streams, tokens, layout.states, scan)
    return scan(streams, tokens.segments, state, document)


def advance(streams: Streams, state: State) -> tuple[Float[Array, "batch heads value"], State]:
    """The recurrence for one token of each row: streams are [batch, heads, ...]. Returns its output and the state."""
    q, k, v, g = (x.astype(jnp.float32) for x in streams[:4])
    state = jnp.exp(g)[..., None] * state
    if streams.rate is not None:
        v = streams.rate[..., None] * (v - jnp.einsum("bhk,bhkv->bhv", k, state))
    state = state + jnp.einsum("bhk,bhv->bhkv", k, v)
    return jnp.einsum("bhk,bhkv->bhv", q, state), state


def _scan(
    streams: Streams, segments: Int[Array, "batch seq"], state: State, document: Int[Array, " batch"], *, backend: str
) -> tuple[Float[Array, "batch seq heads value"], State]:
    """Outputs, and the state behind the tokens, from the `state` before them, which belongs to `document`.

    Kernels have chunks of one size, and zeros behind the last token, which change no state.
    """
    batch, length = segments.shape
    size = _divisor(length, CHUNK) if backend == "xla" else CHUNK
    rest = -length % size
    streams = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, rest), *[(0, 0)] * (x.ndim - 2))), streams)
    segments = jnp.pad(segments, ((0, 0), (0, rest)), mode="edge")
    cut = lambda x: jnp.moveaxis(x.reshape(batch, -1, size, *x.shape[2:]), 1, 0)
    streams, segments = jax.tree.map(cut, (streams, segments))
    documents = jnp.concatenate([document[None], segments[:-1, :, -1]])
    out, state = REGISTRY[backend].scan_chunks(prepare, streams, (segments, documents), state)
    return jnp.moveaxis(out, (0, 3), (1, 2)).reshape(batch, length + rest, *out.shape[2::2])[:, :length], state


def prepare(streams: Streams, documents: tuple[Int[Array, "batch seq"], Int[Array, " batch"]]) -> Chunk:
    """The effect of a chunk's tokens on a state; `documents` are theirs, and that which the state belongs to."""
    segments, document = documents
    by_head = lambda x: jnp.moveaxis(x.astype(jnp.float32), 2, 1)
    q, k, v, g = (by_head(x) for x in streams[:4])
    decayed = jnp.cumsum(g, axis=2)
    left = jnp.pad(lax.cumsum(g, axis=2, reverse=True)[:, :, 1:], ((0, 0), (0, 0), (0, 1), (0, 0)))  # behind a token
    size, last = segments.shape[1], segments[:, -1:]
    same = (segments[:, :, None] == segments[:, None, :])[:, None]
    before = jnp.tril(jnp.ones((size, size), bool))
    continues, stays = (x[:, None, :, None] for x in (segments == document[:, None], segments == last))
    since = jnp.where(continues, jnp.exp(decayed), 0)
    made, removed = v, None
    if streams.rate is not None:
        rate = by_head(streams.rate[..., None])
        earlier = same & before & ~jnp.eye(size, dtype=bool)
        solved = _inverse(rate * jnp.where(earlier, _products(k, k, decayed), 0)) @ (
            rate * jnp.concatenate([v, k * since], axis=-1)
        )
        made, removed = jnp.split(solved, [v.shape[-1]], axis=-1)
    return Chunk(
        read=q * since,
        scores=jnp.where(same & before, _products(q, k, decayed), 0),
        made=made,
        removed=removed,
        write=jnp.where(stays, k * jnp.exp(left), 0),
        keep=jnp.where((last == document[:, None])[..., None], jnp.exp(decayed[:, :, -1]), 0),
    )


def _inverse(lower: Float[Array, "*batch size size"]) -> Float[Array, "*batch size size"]:
    """The inverse of I + `lower`, which is 0 on the diagonal and above it.

    Inverses of two neighbouring blocks X, Y on the diagonal make that of both: below X stands -Y L X. Each level is a
    few batched products, where XLA's solver would go row by row.
    """
    size = lower.shape[-1]
    full = 1 << (size - 1).bit_length()
    lower = jnp.pad(lower, [(0, 0)] * (lower.ndim - 2) + [(0, full - size)] * 2)
    inverse = jnp.ones((*lower.shape[:-2], full, 1, 1), lower.dtype)
    while (width := inverse.shape[-1]) < full:
        pairs = lower.reshape(*lower.shape[:-2], full // (2 * width), 2 * width, full // (2 * width), 2 * width)
        below = jnp.moveaxis(jnp.diagonal(pairs, axis1=-4, axis2=-2), -1, -3)[..., width:, :width]
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        corner = -jnp.einsum("...ij,...jk,...kl->...il", second, below, first, precision="highest")
        upper = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        inverse = jnp.concatenate([upper, jnp.concatenate([corner, second], axis=-1)], axis=-2)
    return inverse[..., 0, :size, :size]


def _products(
    q: Float[Array, "batch heads seq key"],
    k: Float[Array, "batch heads seq key"],
    decayed: Float[Array, "batch heads seq width"],
) -> Float[Array, "batch heads seq seq"]:
    """q_t times k_s, each key dim decayed from s to t >= s; pairs with s > t are finite, and mean nothing.

    `decayed` are running sums of log decays. Their differences are taken before exponentials, of which none exceeds 1:
    those of each key dim directly within a block of tokens, and by way of the block's start between blocks.
    """
    size = q.shape[2]
    if decayed.shape[-1] == 1:
        return jnp.einsum("bhtk,bhsk->bhts", q, k) * jnp.exp(_ages(decayed)[..., 0])
    block = _divisor(size, BLOCK)
    cut = lambda x: x.reshape(*x.shape[:2], size // block, block, x.shape[-1])
    starts = jnp.pad(decayed, ((0, 0), (0, 0), (1, 0), (0, 0)))[:, :, :size:block]  # before each block's first token
    since = cut(q) * jnp.exp(cut(decayed) - starts[:, :, :, None])
    until = jnp.exp(jnp.minimum(starts[:, :, :, None] - decayed[:, :, None], 0)) * k[:, :, None]
    between = jnp.einsum("bhnik,bhnsk->bhnis", since, until).reshape(*q.shape[:2], size, size)
    within = jnp.einsum("bhnik,bhnjk,bhnijk->bhnij", cut(q), cut(k), jnp.exp(_ages(cut(decayed))))
    index = jnp.arange(size) // block
    spread = jnp.tile(within.reshape(*q.shape[:2], size, block), size // block)
    return jnp.where(index[:, None] == index, spread, between)


def _ages(decayed: Float[Array, "*batch seq width"]) -> Float[Array, "*batch seq seq width"]:
    """The log decay from each token s to each later t, and 0 for other pairs. Of a token with itself the difference is
    no part of a gradient: there the two terms cancel but for their rounding, which may exceed what older tokens give.
    """
    later = jnp.tril(jnp.ones((decayed.shape[-2],) * 2, bool), -1)[..., None]
    return jnp.where(later, decayed[..., :, None, :] - decayed[..., None, :, :], 0)


def _before(
    streams: Streams, tokens: TokenContext, transport: str, scan: Callable[..., Any]
) -> tuple[State, Int[Array, " batch"]]:
    """The state before this rank's tokens, and the document that it belongs to; `scan` is `_scan` by a backend."""
    batch, length, heads, width = streams.key.shape
    ranks, segments = lax.axis_size("context"), tokens.segments
    zeros = vary(jnp.zeros((batch, heads, width, streams.value.shape[-1]), jnp.float32))
    if ranks == 1:
        return zeros, segments[:, 0]
    by_rank = tokens.row_segments.reshape(batch, ranks, length)
    first_segments, last_segments = by_rank[:, :, 0], by_rank[:, :, -1]
    linked = jnp.pad(last_segments[:, :-1] == first_segments[:, 1:], ((0, 0), (1, 0)))
    before = TRANSPORTS[transport].before(_folded(streams, segments, zeros, scan), linked)
    return before, vary(last_segments[:, jnp.maximum(lax.axis_index("context") - 1, 0)])


def _folded(streams: Streams, segments: Int[Array, "batch seq"], zeros: State, scan: Callable[..., Any]) -> Fold:
    """The effect of this rank's tokens on a state; without the delta rule, the map is a diagonal."""
    first, last = segments[:, 0], segments[:, -1]
    if streams.rate is None:
        factor = jnp.exp(jnp.sum(streams.decay.astype(jnp.float32), axis=1))
        mapped = jnp.where((first == last)[:, None, None], factor, 0)
        return Fold(mapped, scan(streams, segments, zeros, first)[1])
    width = zeros.shape[2]
    value = jnp.pad(streams.value, ((0, 0), (0, 0), (0, 0), (width, 0)))
    state = jnp.concatenate([jnp.broadcast_to(jnp.eye(width), (*zeros.shape[:3], width)), zeros], axis=-1)
    folded = scan(streams._replace(value=value), segments, vary(state), first)[1]
    return Fold(folded[..., :width], folded[..., width:])


def _divisor(length: int, most: int) -> int:
    """The largest divisor of `length` that is at most `most`."""
    return next(size for size in range(min(most, length), 0, -1) if length % size == 0)
