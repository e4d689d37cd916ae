"""The cache of attention: where the keys and values of each token are, on which rank, and which token a slot has.

The tokens of a row are in pages of a pool that all rows share (PagedAttention, arXiv:2309.06180): the token of index i
is in the page `pages[i // page]` of the row, so the cache is as large as the rows are long. A layer whose window, or
chunk, is shorter than rows may get has instead as many slots for each row as that has tokens: the token of index i is
in slot i % slots, whose token no query sees any more. Slot or index s is on context rank s % context, so the ranks have
equal shares of every prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.counting import attention_scale, window_of
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import CACHED_ROWS, DecodedRows
from jaxpar.layers.tree_attention import tree_attention
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_context
from pallas_kernels.masks import Mask

EMPTY = jnp.iinfo(jnp.int32).max
"""Index of a slot that has no token of the row: no query sees it."""
PARTITION: Any = PartitionSpec(CACHED_ROWS, "tensor", "context")
"""The partition of cached keys and values."""


type Read = Callable[[Callable[[jax.Array], jax.Array]], tuple[jax.Array, jax.Array]]
"""Keys and values [batch, kv_heads, local, width] from a function that takes the tokens of rows out of a cache."""


class KeyValues(NamedTuple):
    """The cache of a layer; on a device its pages or rows, heads and slots."""

    key: Float[Array, "pages kv_heads slots head_dim"]
    value: Float[Array, "pages kv_heads slots head_dim"]


def is_paged(model: ModelConfig, capacity: int) -> bool:
    """Whether the keys and values of rows of up to `capacity` tokens are in pages."""
    return (window := window_of(model)) is None or window >= capacity


@dataclass(frozen=True)
class SlotTable:
    """The slots of the layers of one kind, for rows that are continued."""

    model: ModelConfig
    """The model of one kind of layers."""
    rows: DecodedRows

    @property
    def paged(self) -> bool:
        """Whether rows have pages."""
        return is_paged(self.model, self.rows.capacity)

    def filled(self, prompts: Float[Array, "batch part kv_heads width"], dtype: jnp.dtype) -> jax.Array:
        """This rank's slots [batch, kv_heads, local, width] after prompts, from keys or values of all their tokens:
        pages that the longest prompt fills, side by side, or the slots of the window."""
        x = gather_context(prompts)
        index = self._indices(-(-x.shape[1] // self.rows.page) * self.rows.page if self.paged else self._window)
        valid = index != EMPTY
        entries = jnp.take_along_axis(x, jnp.where(valid, index, 0)[:, :, None, None], axis=1)
        return jnp.where(valid[:, :, None, None], entries, jnp.zeros((), x.dtype)).swapaxes(1, 2).astype(dtype)

    def stored(
        self, cached: Float[Array, "pages kv_heads local width"], new: Float[Array, "one batch kv_heads width"]
    ) -> Float[Array, "pages kv_heads local width"]:
        """`cached` with the last token's keys or values in their slot, on the rank that has it."""
        ranks, index, new = lax.axis_size("context"), self.rows.lengths - 1, new[0]
        if self.paged:
            page = jnp.maximum(index, 0) // self.rows.page
            row, slot = jnp.take_along_axis(self._pages, page[:, None], axis=1)[:, 0], index % self.rows.page
        else:
            row, slot = jnp.arange(len(index)), index % self._window
        # Idle rows write nothing: their pages may be those of others by now.
        mine: Bool[Array, " batch"] = (index >= 0) & (index % ranks == lax.axis_index("context"))
        at = jnp.where(mine, row, len(cached)), slice(None), slot // ranks
        return cached.at[at].set(new.astype(cached.dtype), mode="drop")

    def attend(
        self, q: Float[Array, "one batch heads width"], read: Read, *sinks: jax.Array
    ) -> Float[Array, "one batch heads value_width"]:
        """Attention of one token of each row, side by side as one row, over the slots."""
        model, rows, ranks = self.model, self.rows, lax.axis_size("context")
        parts = _parts(len(rows.lengths)) if self.paged else 1
        # By length, so that few rows of a part are much shorter than its longest one.
        by_length = jnp.argsort(rows.lengths) if parts > 1 else None
        order = slice(None) if by_length is None else by_length
        lengths = rows.lengths[order]
        tables = self._pages[order].reshape(parts, len(lengths) // parts, -1) if self.paged else None

        def page(part: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            assert tables is not None, "rows have pages"
            table, last = tables[part], lengths.reshape(parts, -1)[part] - 1
            index = at * rows.page + jnp.arange(0, rows.page, ranks) + lax.axis_index("context")
            # A page may have numbers of an earlier row that were not finite.
            valid = (index <= last[:, None])[:, None, :, None]
            ids = lax.dynamic_index_in_dim(table, at, axis=1, keepdims=False)
            keys, values = read(lambda cached: jnp.where(valid, cached[ids], jnp.zeros((), cached.dtype)))
            return keys.swapaxes(1, 2), values.swapaxes(1, 2), jnp.broadcast_to(index, (len(last), len(index)))

        def window(*_: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            keys, values = read(lambda cached: cached)
            return keys.swapaxes(1, 2), values.swapaxes(1, 2), self._indices(self._window)

        blocks = -(-lengths.reshape(parts, -1).max(axis=1) // rows.page) if self.paged else None
        out = tree_attention(
            q[0, order], page if self.paged else window, blocks,
            mask=Mask(causal=True, window=window_of(model)), q_indices=lengths - 1,
            scale=attention_scale(model), softcap=model.attention_softcap, sinks=sinks[0] if sinks else None,
        )  # fmt: skip
        return vary(out if by_length is None else out[jnp.argsort(by_length)])[None]

    @property
    def _pages(self) -> Int[Array, "batch pages"]:
        assert self.rows.pages is not None, "rows that are continued have pages"
        return self.rows.pages

    @property
    def _window(self) -> int:
        """Slots of each row in a layer with a window, a multiple of the context ranks."""
        window = window_of(self.model)
        assert window is not None, "a layer without pages has a window"
        return -(-window // (ranks := lax.axis_size("context"))) * ranks

    def _indices(self, slots: int) -> Int[Array, "batch local"]:
        """The index of the token in each of this rank's share of `slots` slots; `EMPTY` for none, or one of an earlier
        chunk."""
        ranks, last = lax.axis_size("context"), self.rows.lengths[:, None] - 1
        at = jnp.arange(slots // ranks) * ranks + lax.axis_index("context")
        index = last - (last - at) % slots
        chunk = self.model.chunk
        return jnp.where(index >= (0 if chunk is None else last // chunk * chunk), index, EMPTY)


def _parts(rows: int) -> int:
    """Parts of rows that each read as many pages as their longest row has: at most four, of at least four rows."""
    return next(parts for parts in (4, 2, 1) if rows % parts == 0 and (rows >= 4 * parts or parts == 1))
