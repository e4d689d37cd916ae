"""Exact attention in plain JAX, block by block, in memory linear in the sequence both ways.

Forward is the online softmax (Milakov & Gimelshein, arXiv:1805.02867; Rabe & Staats, arXiv:2112.05682), backward
recomputes each block's probabilities from the saved log-sum-exp (FlashAttention-2, arXiv:2307.08691, section 3.1).
Matmuls are in the input dtype and accumulate in float32; scores, softmax and gradient accumulators are float32.

Dimensions inside blocks: batch b, KV head k, query q, query head of the KV head g, key s, widths d and v.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.attention.blocks import Blocks, loop
from pallas_kernels.attention.derivative import ForwardBackward, Gradients, OutputAndLse
from pallas_kernels.attention.settings import MaskInputs, Settings
from pallas_kernels.attention.work import visiting
from pallas_kernels.masks import Mask, allowed, visited_blocks
from pallas_kernels.varying import vary_over, varying_axes

_PADDING_INDEX = jnp.iinfo(jnp.int32).max
"""Slot of the keys that only fill up the last block."""


def attention(
    q: Float[Array, "batch queries heads width"],
    k: Float[Array, "batch keys kv_heads width"],
    v: Float[Array, "batch keys kv_heads value_width"],
    *,
    mask: Mask,
    q_indices: Int[Array, "batch queries"],
    kv_indices: Int[Array, "batch keys"],
    q_segments: Int[Array, "batch queries"] | None = None,
    kv_segments: Int[Array, "batch keys"] | None = None,
    prefix_lengths: Int[Array, " batch"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    query_block: int = 512,
    kv_block: int = 512,
    return_lse: bool = False,
) -> Any:
    """Softmax attention over the pairs that `mask` keeps.

    Args:
        q: Queries; query head h uses KV head `h // (heads / kv_heads)` (grouped-query attention).
        k: Keys.
        v: Values; their width may differ from that of queries and keys.
        mask: What a query may see; the next five arguments are what it is decided by (see `pallas_kernels.masks`).
        q_indices: Index of each query in its row, at least 0.
        kv_indices: Index of each key in its row, at least 0.
        q_segments: Document of each query; needed where the mask is segmented.
        kv_segments: Document of each key.
        prefix_lengths: Indices of the prefix of each row; needed where the mask has a prefix.
        scale: Factor of the scores; None means `1 / sqrt(width)`.
        softcap: Scores become `softcap * tanh(score / softcap)`.
        query_block: Queries held at a time. Blocks are evened out, so they may be smaller.
        kv_block: Keys held at a time.
        return_lse: Also return the log-sum-exp of the scores; gradients flow through it.

    Returns:
        The output [batch, queries, heads, value_width] in q's dtype, and with `return_lse` the log-sum-exp
        [batch, queries, heads] in float32. A query that sees no key has output 0 and log-sum-exp -inf, and its
        gradients are 0.

    Raises:
        ValueError: If the shapes do not fit together, or the mask needs tokens that are missing.
    """
    _check_shapes(q, k, v, query_block, kv_block)
    settings = Settings(mask, q.shape[-1] ** -0.5 if scale is None else scale, softcap, query_block, kv_block)
    tokens = MaskInputs(q_indices, kv_indices, q_segments, kv_segments, prefix_lengths)
    out, lse = KERNELS.attend(settings, q, k, v, tokens)
    return (out, lse) if return_lse else out


def attention_forward(
    settings: Settings,
    q: Float[Array, "batch queries heads width"],
    k: Float[Array, "batch keys kv_heads width"],
    v: Float[Array, "batch keys kv_heads value_width"],
    tokens: MaskInputs,
) -> OutputAndLse:
    """Output and log-sum-exp, both float32; see `ForwardBackward`."""
    cut = _Cut.of(settings, q, k)

    def per_query_block(carry: tuple, block: Any):
        q_block, q_tokens, visited = block

        def per_kv_block(state: _State, block: Any):
            k_block, v_block, kv_tokens, visited = block

            def attend(state: _State) -> _State:
                scores, pairs = _scores(settings, q_block, k_block, q_tokens, kv_tokens, tokens.prefix_lengths)
                return _accumulate(state, jnp.where(pairs, scores, -jnp.inf), v_block)

            return cut.if_visited(visited, attend, state), None

        state, _ = loop(per_kv_block, _State.empty(q_block, v.shape[-1]), (*kv_blocks, visited))
        return carry, state.result()

    q_tokens, kv_tokens, visited = cut.tokens(settings.mask, tokens)
    kv_blocks = (cut.split_kv(k), cut.split_kv(v), kv_tokens)
    _, (out, lse) = loop(per_query_block, (), (cut.split_queries(q), q_tokens, visited))
    return cut.join_queries(out), cut.join_queries(lse)


def attention_backward(
    settings: Settings,
    q: Float[Array, "batch queries heads width"],
    k: Float[Array, "batch keys kv_heads width"],
    v: Float[Array, "batch keys kv_heads value_width"],
    tokens: MaskInputs,
    lse: Float[Array, "batch queries heads"],
    delta: Float[Array, "batch queries heads"],
    d_out: Float[Array, "batch queries heads value_width"],
) -> Gradients:
    """Gradients of q, k and v, in float32; see `ForwardBackward`."""
    cut = _Cut.of(settings, q, k)
    lse = jnp.where(lse == -jnp.inf, jnp.inf, lse)  # makes the probabilities of such a row exp(-inf) = 0

    def per_query_block(d_kv: tuple[jax.Array, jax.Array], block: Any):
        q_block, d_out_block, lse_block, inner_block, q_tokens, visited = block

        def per_kv_block(dq: jax.Array, block: Any):
            k_block, v_block, kv_tokens, dk, dv, visited = block

            def differentiate(gradients: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                dq, dk, dv = gradients
                with jax.named_scope("recompute"):
                    scores, pairs = _scores(settings, q_block, k_block, q_tokens, kv_tokens, tokens.prefix_lengths)
                p = jnp.exp(jnp.where(pairs, scores, -jnp.inf) - lse_block[..., None])
                ds = p * (_einsum("bkqgv,bksv->bkqgs", d_out_block, v_block) - inner_block[..., None])
                if settings.softcap is not None:
                    ds = ds * (1.0 - jnp.square(scores / settings.softcap))
                p, ds = p.astype(q.dtype), ds.astype(q.dtype)
                dq = dq + _einsum("bkqgs,bksd->bkqgd", ds, k_block)
                dk = dk + _einsum("bkqgs,bkqgd->bksd", ds, q_block)
                return dq, dk, dv + _einsum("bkqgs,bkqgv->bksv", p, d_out_block)

            dq, dk, dv = cut.if_visited(visited, differentiate, (dq, dk, dv))
            return dq, (dk, dv)

        dq, d_kv = loop(per_kv_block, _zeros_like(q_block), (*kv_blocks, *d_kv, visited))
        return d_kv, dq

    q_tokens, kv_tokens, visited = cut.tokens(settings.mask, tokens)
    kv_blocks = (cut.split_kv(k), cut.split_kv(v), kv_tokens)
    query_blocks = tuple(map(cut.split_queries, (q, d_out, lse, delta)))
    zeros = (_zeros_like(kv_blocks[0]), _zeros_like(kv_blocks[1]))
    (dk, dv), dq = loop(per_query_block, zeros, (*query_blocks, q_tokens, visited))
    return cut.join_queries(dq) * settings.scale, cut.join_kv(dk) * settings.scale, cut.join_kv(dv)


KERNELS = ForwardBackward(attention_forward, attention_backward)


class _State(NamedTuple):
    """The online softmax of a block of queries over the keys that it has seen."""

    peak: jax.Array
    """[b, k, q, g]: the greatest score, -inf before the first."""
    total: jax.Array
    """[b, k, q, g]: sum of exp(score - peak)."""
    output: jax.Array
    """[b, k, q, g, v]: sum of exp(score - peak) * value."""

    @classmethod
    def empty(cls, q: jax.Array, value_width: int) -> _State:
        rows = q.shape[:-1]
        zeros = partial(jnp.zeros, dtype=jnp.float32)
        state = cls(jnp.full(rows, -jnp.inf, jnp.float32), zeros(rows), zeros((*rows, value_width)))
        return vary_over(state, varying_axes(q))

    def result(self) -> tuple[jax.Array, jax.Array]:
        output = self.output / jnp.where(self.total == 0.0, 1.0, self.total)[..., None]
        return output, self.peak + jnp.log(self.total)


def _accumulate(state: _State, scores: jax.Array, v: jax.Array) -> _State:
    peak = jnp.maximum(state.peak, scores.max(-1))
    base = jnp.where(peak == -jnp.inf, 0.0, peak)  # -inf - -inf would be NaN
    p, decay = jnp.exp(scores - base[..., None]), jnp.exp(state.peak - base)
    output = state.output * decay[..., None] + _einsum("bkqgs,bksv->bkqgv", p.astype(v.dtype), v)
    return _State(peak, state.total * decay + p.sum(-1), output)


def _scores(
    settings: Settings, q: jax.Array, k: jax.Array, q_tokens: tuple, kv_tokens: tuple, prefix_lengths: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Scores [b, k, q, g, s] before the mask, and the pairs that it keeps, [b, 1, q, 1, s]."""
    scores = _einsum("bkqgd,bksd->bkqgs", q, k) * settings.scale
    if settings.softcap is not None:
        scores = settings.softcap * jnp.tanh(scores / settings.softcap)
    (q_indices, q_segments), (kv_indices, kv_segments) = q_tokens, kv_tokens
    pairs = allowed(settings.mask, q_indices, kv_indices, q_segments, kv_segments, prefix_lengths)
    if not settings.mask.causal:  # a causal mask never reaches the padding's index
        pairs &= (kv_indices != _PADDING_INDEX)[:, None, :]
    return scores, pairs[:, None, :, None, :]


@dataclass(frozen=True)
class _Cut:
    """The division of queries and keys into blocks, heads before the sequence, so that matmuls need no transpose."""

    queries: Blocks
    keys: Blocks
    kv_heads: int
    mask: Mask

    @classmethod
    def of(cls, settings: Settings, q: jax.Array, k: jax.Array) -> _Cut:
        queries = Blocks.at_most(settings.query_block, q.shape[1], settings.run)
        keys = Blocks.at_most(settings.kv_block, k.shape[1], settings.run)
        return cls(queries, keys, k.shape[2], settings.mask)

    def split_queries(self, x: jax.Array) -> jax.Array:
        """[b, queries, heads, ...] -> [blocks, b, k, q, g, ...]"""
        x = self.queries.split(x)
        return jnp.moveaxis(x.reshape(*x.shape[:3], self.kv_heads, -1, *x.shape[4:]), 2, 3)

    def join_queries(self, x: jax.Array) -> jax.Array:
        """Undo `split_queries`."""
        x = jnp.moveaxis(x, 3, 2)
        return self.queries.join(x.reshape(*x.shape[:3], -1, *x.shape[5:]))

    def split_kv(self, x: jax.Array) -> jax.Array:
        """[b, keys, k, ...] -> [blocks, b, k, s, ...]"""
        return jnp.swapaxes(self.keys.split(x), 2, 3)

    def join_kv(self, x: jax.Array) -> jax.Array:
        """Undo `split_kv`."""
        return self.keys.join(jnp.swapaxes(x, 2, 3))

    def tokens(self, mask: Mask, tokens: MaskInputs) -> tuple[tuple, tuple, jax.Array]:
        """(indices, segments) of query blocks and of key blocks, and which pairs of blocks must be computed."""
        q_indices = self.queries.split(tokens.q_indices, mode="edge")
        kv_indices = self.keys.split(tokens.kv_indices, constant_values=_PADDING_INDEX)
        q_segments, kv_segments = None, None
        if tokens.q_segments is not None and tokens.kv_segments is not None:
            q_segments, kv_segments = self.queries.split(tokens.q_segments), self.keys.split(tokens.kv_segments)
        visited = visited_blocks(mask, q_indices, kv_indices, q_segments, kv_segments, tokens.prefix_lengths)
        return (q_indices, q_segments), (kv_indices, kv_segments), visited

    def if_visited[T](self, visited: jax.Array, compute: Callable[[T], T], state: T) -> T:
        """Skip a pair of blocks that the mask empties; the only pair is always computed."""
        if self.queries.count * self.keys.count == 1:
            return compute(state)
        with visiting(self.mask, self.keys.count * self.keys.size, self.queries.size, self.keys.size):
            return lax.cond(visited, compute, lambda state: state, state)


def _zeros_like(x: jax.Array) -> jax.Array:
    """Float32 zeros of x's shape and varying type."""
    return vary_over(jnp.zeros(x.shape, jnp.float32), varying_axes(x))


def _einsum(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)


def _check_shapes(q: jax.Array, k: jax.Array, v: jax.Array, query_block: int, kv_block: int) -> None:
    fits = q.ndim == k.ndim == v.ndim == 4 and q.shape[0] == k.shape[0] and k.shape[:3] == v.shape[:3]
    if not fits or q.shape[3] != k.shape[3] or q.shape[2] % k.shape[2]:
        raise ValueError(f"query {q.shape}, key {k.shape} and value {v.shape} do not fit together")
    if query_block < 1 or kv_block < 1:
        raise ValueError(f"blocks must be at least 1, got query_block={query_block} and kv_block={kv_block}")
