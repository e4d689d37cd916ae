"""The mask for tiles: limits of every query, tokens of every key, and the blocks that must be visited.

A mask of `pallas_kernels.masks` is decided, pair by pair, by two integers of a query, one of a key, and their segments:

    low(q) < index(k) <= high(q)  and  segment(q) == segment(k)

with `high = max(q_index, prefix_length - 1)` where the mask is causal, and `low = q_index - window` where there is a
window, which makes `high = q_index + window - 1` where it is not causal. So a kernel needs three comparisons for any
mask, and none at all in a block whose pairs are all visible. Which blocks those are, and which are empty, follows from
the least and greatest value of each block, here in plain JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from pallas_kernels.attention.intervals import Intervals, most_visited
from pallas_kernels.attention.settings import MaskInputs
from pallas_kernels.masks import Mask

_GREATEST = jnp.iinfo(jnp.int32).max
_NO_KEY = _GREATEST
"""Slot of what lies behind the last key; no query reaches it."""


@dataclass(frozen=True)
class Limits:
    """The limits that a mask needs, which decide the rows of the token arrays; static under jit."""

    segmented: bool
    """Whether segments are compared."""
    windowed: bool
    """Whether there is a lower limit. The upper limit always exists and excludes padding after the last key."""

    @classmethod
    def of(cls, mask: Mask) -> Limits:
        return cls(mask.segmented, mask.window is not None)

    @property
    def query_rows(self) -> int:
        return 1 + self.windowed + self.segmented

    @property
    def key_rows(self) -> int:
        return 1 + self.segmented

    def hide(
        self,
        values: jax.Array,
        hidden: float,
        query: Callable[[int], jax.Array],
        key: Callable[[int], jax.Array],
    ) -> jax.Array:
        """`values` of pairs, with `hidden` in place of those that the mask does not keep.

        `query` and `key` give a row as `query_limits` and `key_tokens` make them, in the shape of `values`; one is
        asked for at a time, so that one is in registers at a time.
        """
        values = jnp.where(key(0) <= query(0), values, hidden)
        if self.windowed:
            values = jnp.where(key(0) > query(1), values, hidden)
        if self.segmented:
            values = jnp.where(key(1) == query(self.query_rows - 1), values, hidden)
        return values


def query_limits(mask: Mask, tokens: MaskInputs, block: int) -> Int[Array, "batch rows padded_queries"]:
    """(high, low where there is a window, segment where they count) of every query.

    Padded to whole blocks with copies of the last query, so that padding makes no block less empty or less whole.
    """
    indices = tokens.q_indices.astype(jnp.int32)
    high = jnp.full_like(indices, _GREATEST - 1)
    if mask.window is not None and not mask.causal:
        high = indices + (min(mask.window, _GREATEST // 2) - 1)
    if mask.causal:
        high = indices
        if mask.prefix:
            high = jnp.maximum(high, _needed(tokens.prefix_lengths, "prefix_lengths")[:, None].astype(jnp.int32) - 1)
    rows = [high]
    if mask.window is not None:
        rows.append(indices - min(mask.window, _GREATEST))
    if mask.segmented:
        segments = _needed(tokens.q_segments, "q_segments").astype(jnp.int32)
        rows.append(jnp.where(segments == 0, -1, segments))  # padding sees nothing, padding neither
    return jnp.pad(jnp.stack(rows, 1), [(0, 0), (0, 0), (0, -indices.shape[1] % block)], mode="edge")


def key_tokens(mask: Mask, tokens: MaskInputs, block: int) -> Int[Array, "batch rows padded_keys"]:
    """(index, segment where they count) of every key, padded to whole blocks with keys that no query sees."""
    indices = tokens.kv_indices.astype(jnp.int32)
    rows, missing = [indices], -indices.shape[1] % block
    if mask.segmented:
        rows.append(_needed(tokens.kv_segments, "kv_segments").astype(jnp.int32))
    padding = [(0, 0), (0, 0), (0, missing)]
    return jnp.pad(jnp.stack(rows, 1), padding, constant_values=_NO_KEY)


class Visits(NamedTuple):
    """The blocks of the other side that each tile visits."""

    blocks: Int[Array, "batch tiles blocks"]
    """Full blocks first, then partial ones, then the others, each group ascending."""
    lengths: Int[Array, "batch tiles 2"]
    """Number of full blocks, and of visited ones."""
    order: Int[Array, " batch*tiles"]
    """`batch * tiles + tile` of the tiles, those with the most blocks first (Graham's longest-processing-time rule)."""


def visits(
    limits: Limits,
    queries: jax.Array,
    keys: jax.Array,
    q_block: int,
    kv_block: int,
    of_keys: bool,
    neighbours: Mask | None = None,
) -> Visits:
    """The blocks that each tile of queries visits, or with `of_keys` each tile of keys.

    Args:
        limits: The limits that the mask needs.
        queries: From `query_limits`, padded to a multiple of `q_block`.
        keys: From `key_tokens`, padded to a multiple of `kv_block`.
        q_block: Queries of a tile (or block).
        kv_block: Keys of a block (or tile).
        of_keys: The tiles are the keys'.
        neighbours: The mask, where indices grow by one from token to token. What a tile visits is then an interval, of
            which lists are made without sorting, and under a window no longer than it leaves them.
    """
    visited, full = _judge(limits, queries, keys, q_block, kv_block)
    if of_keys:
        visited, full = visited.swapaxes(1, 2), full.swapaxes(1, 2)
    if neighbours is not None:
        sizes = (kv_block, q_block) if of_keys else (q_block, kv_block)
        intervals = Intervals.of(visited, full)
        blocks = intervals.blocks(min(visited.shape[-1], most_visited(neighbours, *sizes) or visited.shape[-1]))
        lengths = jnp.stack([intervals.full, intervals.visited], -1)
    else:
        rank = jnp.where(full, 0, jnp.where(visited, 1, 2)).astype(jnp.int8)
        blocks = jnp.argsort(rank, axis=-1, stable=True).astype(jnp.int32)
        lengths = jnp.stack([full.sum(-1, dtype=jnp.int32), visited.sum(-1, dtype=jnp.int32)], -1)
    order = jnp.argsort(-lengths[..., 1].reshape(-1), stable=True).astype(jnp.int32)
    return Visits(blocks, lengths, order)


def _judge(
    limits: Limits, queries: jax.Array, keys: jax.Array, q_block: int, kv_block: int
) -> tuple[Bool[Array, "batch q_blocks kv_blocks"], Bool[Array, "batch q_blocks kv_blocks"]]:
    """The blocks that may have a visible pair, and those in which every pair is visible."""
    queries = queries.reshape(*queries.shape[:2], -1, q_block)
    keys = keys.reshape(*keys.shape[:2], -1, kv_block)
    least_q, most_q = queries.min(-1)[..., :, None], queries.max(-1)[..., :, None]
    least_kv, most_kv = keys.min(-1)[..., None, :], keys.max(-1)[..., None, :]
    visited, full = least_kv[:, 0] <= most_q[:, 0], most_kv[:, 0] <= least_q[:, 0]
    if limits.windowed:
        last = jnp.where(keys[:, 0] < _NO_KEY, keys[:, 0], -_NO_KEY).max(-1)[
            ..., None, :
        ]  # no window has padding in it
        visited &= last > least_q[:, 1]
        full &= least_kv[:, 0] > most_q[:, 1]
    if limits.segmented:
        real_q, real_kv = queries[:, -1] > 0, (keys[:, 1] > 0) & (keys[:, 1] < _NO_KEY)
        first_q = jnp.where(real_q, queries[:, -1], _GREATEST).min(-1)[..., :, None]
        first_kv = jnp.where(real_kv, keys[:, 1], _GREATEST).min(-1)[..., None, :]
        last_kv = jnp.where(real_kv, keys[:, 1], 0).max(-1)[..., None, :]
        visited &= (first_kv <= most_q[:, -1]) & (first_q <= last_kv)
        same = (least_q[:, -1] == most_q[:, -1]) & (least_kv[:, 1] == most_kv[:, 1])
        full &= same & (least_q[:, -1] == least_kv[:, 1])
    return visited, full & visited


def _needed(values: jax.Array | None, name: str) -> jax.Array:
    if values is None:
        raise ValueError(f"this mask needs {name}")
    return values
