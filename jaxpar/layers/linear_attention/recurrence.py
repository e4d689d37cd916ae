"""The recurrence of mixers with a state, in chunks of tokens. A head has a state S [key, value]:

    S_t = exp(g_t) S_(t-1) + k_t u_t^T        u_t = v_t, or r_t (v_t - (exp(g_t) S_(t-1))^T k_t) by the delta rule
    o_t = S_t^T q_t

with a log decay g_t <= 0 for each key dim, or one for the head; a document begins with S = 0. Tokens of a chunk are
multiplied with each other, and a chunk maps the state before it affinely to the one behind it: S' = M S + N (Yang et
al. 2024, arXiv:2406.06484 and arXiv:2412.06464). `context_ranks.py` has the same over context ranks. Everything is
float32.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from jaxpar.layers.linear_attention.transports import State
from pallas_kernels.linear_attention import CHUNK, Chunk
from pallas_kernels.linear_attention.registry import REGISTRY

BLOCK = 16
"""Tokens of a chunk between which decays of each key dim are multiplied out; further ones meet at a block's start."""
GRID, LEAST = 2.0**-10, -128.0
"""Running sums of log decays are exact in multiples of the former: those of a chunk are at least 64 times the latter,
whose exponential is 0 in float32."""


class Streams(NamedTuple):
    """Queries, keys, values and decays of this rank's tokens."""

    query: Float[Array, "batch seq heads key"]
    key: Float[Array, "batch seq heads key"]
    value: Float[Array, "batch seq heads value"]
    decay: Float[Array, "batch seq heads width"]
    """Logarithms, at most 0; the width is that of keys, or 1."""
    rate: Float[Array, "batch seq heads"] | None = None
    """The delta rule's r; None is without the rule."""


def advance(streams: Streams, state: State) -> tuple[Float[Array, "batch heads value"], State]:
    """The recurrence for one token of each row: streams are [batch, heads, ...]. Returns its output and the state."""
    q, k, v, g = (x.astype(jnp.float32) for x in streams[:4])
    state = jnp.exp(g)[..., None] * state
    if streams.rate is not None:
        v = streams.rate[..., None] * (v - jnp.einsum("bhk,bhkv->bhv", k, state))
    state = state + jnp.einsum("bhk,bhv->bhkv", k, v)
    return jnp.einsum("bhk,bhkv->bhv", q, state), state


def scan(
    streams: Streams,
    segments: Int[Array, "batch seq"],
    state: State,
    document: Int[Array, " batch"],
    *,
    backend: str = "xla",
) -> tuple[Float[Array, "batch seq heads value"], State]:
    """Outputs, and the state behind the tokens, from the `state` before them, which belongs to `document`.

    Kernels have chunks of one size, and zeros behind the last token, which change no state.
    """
    batch, length = segments.shape
    size = _divisor(length, CHUNK) if backend == "xla" else CHUNK
    rest = -length % size
    streams = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, rest), *[(0, 0)] * (x.ndim - 2))), streams)
    segments = jnp.pad(segments, ((0, 0), (0, rest)), mode="edge")
    out, state = REGISTRY[backend].scan_chunks(prepare, *_cut(streams, segments, document, size), state)
    return jnp.moveaxis(out, (0, 3), (1, 2)).reshape(batch, length + rest, *out.shape[2::2])[:, :length], state


def state_gradient(
    streams: Streams,
    segments: Int[Array, "batch seq"],
    document: Int[Array, " batch"],
    out: Float[Array, "batch seq heads value"],
    behind: State,
) -> State:
    """The gradient of the state before the tokens, from those of their outputs and of the state behind them."""

    def chunk(gradient: State, xs: tuple[Streams, tuple[Array, Array], Array]) -> tuple[State, None]:
        streams, fixed, out = xs
        one = prepare(streams, fixed)
        before = one.keep[..., None] * gradient + jnp.einsum("bhsk,bshv->bhkv", one.read, out)
        if one.removed is not None:
            made = jnp.einsum("bhst,bshv->bhtv", one.scores, out) + jnp.einsum("bhsk,bhkv->bhsv", one.write, gradient)
            before -= jnp.einsum("bhsk,bhsv->bhkv", one.removed, made)
        return before, None

    size = _divisor(segments.shape[1], CHUNK)
    inputs = (*_cut(streams, segments, document, size), _chunks(out, size))
    return lax.scan(chunk, behind, inputs, reverse=True)[0]


def _cut(
    streams: Streams, segments: Int[Array, "batch seq"], document: Int[Array, " batch"], size: int
) -> tuple[Streams, tuple[Int[Array, "chunks batch seq"], Int[Array, "chunks batch"]]]:
    """The tokens in chunks, with their documents, and the document before each chunk."""
    streams, segments = jax.tree.map(lambda x: _chunks(x, size), (streams, segments))
    return streams, (segments, jnp.concatenate([document[None], segments[:-1, :, -1]]))


def _chunks(x: Shaped[Array, "batch seq ..."], size: int) -> Shaped[Array, "chunks batch part ..."]:
    return jnp.moveaxis(x.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)


def prepare(streams: Streams, documents: tuple[Int[Array, "batch seq"], Int[Array, " batch"]]) -> Chunk:
    """The effect of a chunk's tokens on a state; `documents` are theirs, and that which the state belongs to."""
    segments, document = documents
    by_head = lambda x: jnp.moveaxis(x.astype(jnp.float32), 2, 1)
    q, k, v, g = (by_head(x) for x in streams[:4])
    sums = _running_sums(g)
    decayed = sums.coarse + sums.fine
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
        solved = _inverse(rate * jnp.where(earlier, _products(k, k, sums), 0)) @ (
            rate * jnp.concatenate([v, k * since], axis=-1)
        )
        made, removed = jnp.split(solved, [v.shape[-1]], axis=-1)
    return Chunk(
        read=q * since,
        scores=jnp.where(same & before, _products(q, k, sums), 0),
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


class _Sums(NamedTuple):
    """Running sums of log decays in two summands, whose differences are exact to rounding of the difference."""

    coarse: Float[Array, "*batch seq width"]
    """Multiples of `GRID`, so that float32 adds and subtracts them without rounding."""
    fine: Float[Array, "*batch seq width"]
    """Sums of the remainders, each at most half of `GRID`; the derivative is theirs."""


def _running_sums(decay: Float[Array, "*batch seq width"]) -> _Sums:
    """The running sums over a chunk, whose differences would lose digits if they were rounded as one: 64 tokens at -80
    are -5120, and float32 has that to 2e-4."""
    decay = jnp.maximum(decay, LEAST)
    coarse = lax.stop_gradient(jnp.round(decay / GRID) * GRID)
    return _Sums(*(jnp.cumsum(x, axis=-2) for x in (coarse, decay - coarse)))


def _products(
    q: Float[Array, "batch heads seq key"], k: Float[Array, "batch heads seq key"], sums: _Sums
) -> Float[Array, "batch heads seq seq"]:
    """q_t times k_s, each key dim decayed from s to t >= s; pairs with s > t are finite, and mean nothing.

    Differences of running `sums` of log decays are taken before exponentials, of which none exceeds 1: those of each
    key dim directly within a block of tokens, and by way of the block's start between blocks.
    """
    size = q.shape[2]
    if sums.fine.shape[-1] == 1:
        return jnp.einsum("bhtk,bhsk->bhts", q, k) * jnp.exp(_ages(sums)[..., 0])
    block = _divisor(size, BLOCK)
    blocks, index = size // block, jnp.arange(size) // block
    cut = lambda x: x.reshape(*x.shape[:2], blocks, block, x.shape[-1])
    starts = [jnp.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0)))[:, :, :size:block] for x in sums]  # before each first token
    age = sum(cut(x) - start[:, :, :, None] for x, start in zip(sums, starts, strict=True))
    rest = sum(start[:, :, :, None] - x[:, :, None] for x, start in zip(sums, starts, strict=True))
    earlier = (index < jnp.arange(blocks)[:, None])[..., None]
    since, until = cut(q) * jnp.exp(age), jnp.where(earlier, jnp.exp(jnp.where(earlier, rest, 0)), 0) * k[:, :, None]
    between = jnp.einsum("bhnik,bhnsk->bhnis", since, until).reshape(*q.shape[:2], size, size)
    within = jnp.einsum("bhnik,bhnjk,bhnijk->bhnij", cut(q), cut(k), jnp.exp(_ages(_Sums(*map(cut, sums)))))
    spread = jnp.tile(within.reshape(*q.shape[:2], size, block), blocks)
    return jnp.where(index[:, None] == index, spread, between)


def _ages(sums: _Sums) -> Float[Array, "*batch seq seq width"]:
    """The log decay from each token s to each later t, and 0 for other pairs. Of a token with itself the difference is
    no part of a gradient: there the two terms cancel but for their rounding, which may exceed what older tokens give.
    """
    later = jnp.tril(jnp.ones((sums.fine.shape[-2],) * 2, bool), -1)[..., None]
    return jnp.where(later, sum(x[..., :, None, :] - x[..., None, :, :] for x in sums), 0)


def _divisor(length: int, most: int) -> int:
    """The largest divisor of `length` that is at most `most`."""
    return next(size for size in range(min(most, length), 0, -1) if length % size == 0)
