"""Which blocks of pairs a kernel visits: lists made in XLA before it, from the first and last token of each block."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from pallas_kernels.attention.blocks import Blocks
from pallas_kernels.attention.settings import Tokens
from pallas_kernels.masks import Mask, kept_blocks_of_rows, whole_blocks_of_rows

PADDING_SLOT = jnp.iinfo(jnp.int32).max
"""Slot of the keys that only fill up the last block."""


class Lists(NamedTuple):
    """For each block, the blocks of the other side that it is paired with."""

    order: Int[Array, "batch blocks others"]
    """Numbers of the others: first those of which the mask keeps every pair, then those that it cuts."""
    whole: Int[Array, "batch blocks"]
    """How many of the former."""
    kept: Int[Array, "batch blocks"]
    """How many of both; what follows in `order` is never visited."""


def per_query_block(mask: Mask, tokens: Tokens, queries: int, keys: int) -> Lists:
    """The key blocks of each query block, where blocks are of so many tokens."""
    return _lists(*_of_blocks(mask, tokens, queries, keys))


def per_key_block(mask: Mask, tokens: Tokens, queries: int, keys: int) -> Lists:
    """The query blocks of each key block."""
    kept, whole = _of_blocks(mask, tokens, queries, keys)
    return _lists(kept.swapaxes(1, 2), whole.swapaxes(1, 2))


def _of_blocks(mask: Mask, tokens: Tokens, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
    """[batch, query blocks, key blocks]: which must be visited, and of which every pair is kept."""
    of_queries, of_keys = (
        _blocks(slots.shape[1], size) for slots, size in ((tokens.q_slots, queries), (tokens.kv_slots, keys))
    )
    q_slots = of_queries.split(tokens.q_slots, mode="edge")
    kv_slots = of_keys.split(tokens.kv_slots, constant_values=PADDING_SLOT)
    q_segments, kv_segments = None, None
    if mask.segmented and tokens.q_segments is not None and tokens.kv_segments is not None:
        q_segments, kv_segments = of_queries.split(tokens.q_segments, mode="edge"), of_keys.split(tokens.kv_segments)
    blocks = (mask, q_slots, kv_slots, q_segments, kv_segments, tokens.prefix_lengths)
    kept, whole = (jnp.moveaxis(of_rows(*blocks), -1, 0) for of_rows in (kept_blocks_of_rows, whole_blocks_of_rows))
    if of_keys.count * of_keys.size != of_keys.length:
        whole &= jnp.arange(of_keys.count) < of_keys.count - 1
    return kept, kept & whole


def _blocks(length: int, size: int) -> Blocks:
    return Blocks(length, -(-length // size), size)


def _lists(kept: jax.Array, whole: jax.Array) -> Lists:
    others = kept.shape[-1]
    place = jnp.arange(others, dtype=jnp.int32)
    order = jnp.sort(jnp.where(whole, 0, jnp.where(kept, others, 2 * others)) + place, axis=-1) % others
    count = lambda which: which.sum(-1, dtype=jnp.int32)
    return Lists(order.astype(jnp.int32), count(whole), count(kept))
