"""The blocks of pairs that a kernel visits, computed by XLA before it from the first and last token of each block.

If indices grow by one from token to token, they are an interval of 16 bytes per tile; otherwise a list of 4 bytes per
pair of blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from pallas_kernels.attention.blocks import Blocks
from pallas_kernels.attention.intervals import Intervals, cut_block
from pallas_kernels.attention.settings import MaskInputs
from pallas_kernels.masks import Mask, blocks_of_rows

PADDING_INDEX = jnp.iinfo(jnp.int32).max
"""Slot of the keys that only fill up the last block."""
_PAIRS = 2**20
"""Pairs of blocks that are judged at a time: those of a row of 128k tokens in blocks of 128."""


class Lists(NamedTuple):
    """The blocks of the other side with which each block is paired."""

    order: Int[Array, "batch blocks others"]
    """Indices of the others: full blocks first, then partial ones."""
    full: Int[Array, "batch blocks"]
    """Number of full blocks."""
    visited: Int[Array, "batch blocks"]
    """Number of visited blocks, full and partial; later entries of `order` are never visited."""


type Visits = Lists | Intervals


def per_query_block(mask: Mask, tokens: MaskInputs, queries: int, keys: int, *, neighbours: bool = False) -> Visits:
    """The key blocks of each query block, for blocks of `queries` and `keys` tokens; `neighbours` as in `Settings`."""
    of_queries, of_keys, prefixes = _sides(mask, tokens, queries, keys)
    judge = lambda tiles: _judge(mask, tiles, of_keys, prefixes)
    return _intervals(judge, of_queries, of_keys) if neighbours else _lists(*judge(of_queries))


def per_key_block(mask: Mask, tokens: MaskInputs, queries: int, keys: int, *, neighbours: bool = False) -> Visits:
    """The query blocks of each key block."""
    of_queries, of_keys, prefixes = _sides(mask, tokens, queries, keys)

    def judge(tiles: _Side) -> tuple[jax.Array, jax.Array]:
        visited, full = _judge(mask, of_queries, tiles, prefixes)
        return visited.swapaxes(1, 2), full.swapaxes(1, 2)

    return _intervals(judge, of_keys, of_queries) if neighbours else _lists(*judge(of_keys))


class Visited(NamedTuple):
    """The blocks that one block visits, inside a kernel."""

    full: jax.Array
    visited: jax.Array
    other: Callable[[jax.Array, bool], jax.Array]
    """Function of (index, cut) that returns the `index`th visited block; `cut` selects the partial ones."""

    @classmethod
    def by(cls, visits: Any, row: jax.Array, block: jax.Array) -> Visited:
        """`visits` are references to a `Visits`."""
        full, visited = visits.full[row, block], visits.visited[row, block]
        if isinstance(visits, Lists):
            return cls(full, visited, lambda index, cut: visits.order[row, block, index])
        first, inner = visits.first[row, block], visits.inner[row, block]

        def other(index: jax.Array, cut: bool) -> jax.Array:
            return cut_block(index - full, first, inner, full) if cut else inner + index

        return cls(full, visited, other)


class _Side(NamedTuple):
    """Tokens of queries or keys, block by block."""

    indices: Int[Array, "blocks batch size"]
    segments: Int[Array, "blocks batch size"] | None
    padded: Bool[Array, " blocks"]
    """Whether some of a block lie past the end."""


def _sides(mask: Mask, tokens: MaskInputs, queries: int, keys: int) -> tuple[_Side, _Side, jax.Array | None]:
    """Blocks of queries and of keys, padded with copies of the last index; keys that are none are of no document."""

    def side(indices: jax.Array, segments: jax.Array | None, size: int, padding: dict, of_segments: dict) -> _Side:
        blocks = Blocks(indices.shape[1], -(-indices.shape[1] // size), size)
        cut = None if segments is None or not mask.segmented else blocks.split(segments, **of_segments)
        padded = (1 + jnp.arange(blocks.count)) * size > blocks.length
        return _Side(blocks.split(indices, **padding), cut, padded)

    edge = {"mode": "edge"}
    of_queries = side(tokens.q_indices, tokens.q_segments, queries, edge, edge)
    of_keys = side(tokens.kv_indices, tokens.kv_segments, keys, edge, {})
    return of_queries, of_keys, tokens.prefix_lengths


def _judge(mask: Mask, queries: _Side, keys: _Side, prefixes: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Masks [batch, query blocks, key blocks] of the visited blocks and of the full ones."""
    blocks = (mask, queries.indices, keys.indices, queries.segments, keys.segments, prefixes)
    visited, full = (jnp.moveaxis(x, -1, 0) for x in blocks_of_rows(*blocks))
    return visited, visited & full & ~keys.padded


def _intervals(judge: Callable[[_Side], tuple[jax.Array, jax.Array]], tiles: _Side, others: _Side) -> Intervals:
    """Some tiles at a time, so that pairs of blocks take no more than `_PAIRS` wherever XLA writes them down."""
    at_once = max(1, _PAIRS // others.padded.shape[0])
    if tiles.padded.shape[0] <= at_once:
        return Intervals.of(*judge(tiles))
    one = lambda tile: Intervals.of(*judge(jax.tree.map(lambda x: x[None], tile)))
    intervals = lax.map(one, tiles, batch_size=at_once)
    return jax.tree.map(lambda x: jnp.moveaxis(x[..., 0], 0, 1), intervals)


def _lists(visited: jax.Array, full: jax.Array) -> Lists:
    others = visited.shape[-1]
    index = jnp.arange(others, dtype=jnp.int32)
    order = jnp.sort(jnp.where(full, 0, jnp.where(visited, others, 2 * others)) + index, axis=-1) % others
    count = lambda which: which.sum(-1, dtype=jnp.int32)
    return Lists(order.astype(jnp.int32), count(full), count(visited))
