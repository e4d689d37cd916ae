"""Decoding one token per row over keys and values split along the sequence: tree attention (arXiv:2408.04093).

A ring would send the keys and values of all ranks past each query. Here they stay: each rank attends with the one query
to its own keys, and only an output and a log-sum-exp per head are merged.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.mesh.collectives import reduce_max, reduce_sum
from pallas_kernels.attention import MaskInputs, Settings, attention_forward
from pallas_kernels.masks import Mask
from pallas_kernels.varying import vary_alike


def tree_attention(
    q: Float[Array, "batch heads width"],
    read: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    blocks: Int[Array, " parts"] | None,
    *,
    mask: Mask,
    q_indices: Int[Array, " batch"],
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Array, " heads"] | None = None,
) -> Float[Array, "batch heads value_width"]:
    """Softmax attention of one query per row over the keys of all context ranks, inside `shard_map`.

    With n = context ranks, a device sends `8 * (n - 1) / n * batch * heads * (value_width + 2)` bytes, however long the
    sequence is: a maximum of the log-sum-exps, then one sum of numerators and denominators, which share a buffer. All
    of it is float32. A layer makes these two collectives and no others.

    The mask hides the slots of a cache that have no token yet: a row's query has the index of its last token (its
    length - 1), and each slot the index of the token that it has or will have. A row without tokens, whose query has
    index -1, gets zeros; any number of ranks may have nothing that a row sees.

    The rows are in equal parts. A part reads as many blocks as its longest row has.

    Args:
        q: The query of each row, the same on all context ranks; query head h uses KV head `h // (heads / kv_heads)`.
        read: From a part of the rows and a block of the sequence: this rank's keys [rows, slots, kv_heads, width],
            values [rows, slots, kv_heads, value_width] and indices of them in their row [rows, slots], in any order;
            the first part's first block is read whether a row sees it or not. The new token's key is on one of the
            ranks.
        blocks: Blocks that the rows of each part see, in order; the same on all ranks; None for one part of one
            block.
        mask: What a query may see, causal for a cache that is not full; without a prefix and segments.
        q_indices: Index of each query in its row.
        scale: Factor of the scores; None means `1 / sqrt(width)`.
        softcap: Scores become `softcap * tanh(score / softcap)`.
        sinks: A logit of each head that is in the denominator alone.

    Returns:
        The output in q's dtype, the same on all context ranks.

    Raises:
        ValueError: If the keys do not vary over context ranks.
    """
    parts = len(blocks) if isinstance(blocks, Array) else 1
    queries, indices = (x.reshape(parts, -1, *x.shape[1:]) for x in (q, q_indices))

    def attend(part: jax.Array, block: jax.Array) -> tuple[jax.Array, jax.Array]:
        k, v, kv_indices = read(part, block)
        query, q_indices = (lax.dynamic_index_in_dim(x, part, keepdims=False)[:, None] for x in (queries, indices))
        settings = Settings(mask, q.shape[-1] ** -0.5 if scale is None else scale, softcap, 1, k.shape[1])
        inputs: tuple = vary_alike((query, k, v, MaskInputs(q_indices, kv_indices)))
        out, lse = (x[:, 0] for x in attention_forward(settings, *inputs))
        return out, lse

    out, lse = _merged(attend, blocks) if isinstance(blocks, Array) else attend(jnp.array(0), jnp.array(0))
    out, lse = out.reshape(*q.shape[:2], -1), lse.reshape(q.shape[:2])
    peak = reduce_max(lse, ("context",))
    if sinks is not None:
        sinks = sinks.astype(jnp.float32)
        peak = jnp.maximum(peak, sinks)
    weight = jnp.exp(lse - jnp.where(peak == -jnp.inf, 0.0, peak))[..., None]  # -inf - -inf would be NaN
    merged = reduce_sum(jnp.concatenate([out * weight, weight], -1), ("context",))
    numerator, denominator = merged[..., :-1], merged[..., -1:]
    if sinks is not None:
        denominator = denominator + jnp.exp(sinks - peak)[..., None]
    return (numerator / jnp.where(denominator == 0.0, 1.0, denominator)).astype(q.dtype)


def _merged(
    attend: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]], blocks: Int[Array, " parts"]
) -> tuple[Float[Array, "parts rows heads width"], Float[Array, "parts rows heads"]]:
    """Output and log-sum-exp over the blocks of each part, from those of a part and a block."""
    stops = blocks.cumsum()

    def add(step: jax.Array, before: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        part = (step >= stops).sum()
        (out, lse), (other, log) = (x[part] for x in before), attend(part, step - (stops - blocks)[part])
        both = jnp.logaddexp(lse, log)
        of = lambda log: jnp.exp(log - jnp.where(both == -jnp.inf, 0.0, both))[..., None]
        return before[0].at[part].set(out * of(lse) + other * of(log)), before[1].at[part].set(both)

    # The first block of the first part gives shapes and types, also where that part has no tokens.
    out, lse = attend(jnp.array(0), jnp.array(0))
    empty = lambda x, value: jnp.full((len(blocks), *x.shape), value, x.dtype).at[0].set(x)
    return lax.fori_loop(jnp.minimum(blocks[0], 1), stops[-1], add, (empty(out, 0.0), empty(lse, -jnp.inf)))
