"""The cache of attention: where the keys and values of each token are, on which rank, and which token a slot has.

A layer has `slots` slots for each row. The token of index i is in slot i % slots, so a layer with a window, or chunks,
needs no more slots than one has tokens: a new token takes the slot of the one that no query sees any more. Slot s is on
context rank s % context, so the ranks have equal shares of every prefix.
"""

from __future__ import annotations

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


class KeyValues(NamedTuple):
    """The cache of a layer; on a device its rows, heads and slots."""

    key: Float[Array, "batch kv_heads slots head_dim"]
    value: Float[Array, "batch kv_heads slots head_dim"]


@dataclass(frozen=True)
class SlotTable:
    """The slots of the layers of one kind, for rows that are continued."""

    model: ModelConfig
    """The model of one kind of layers."""
    rows: DecodedRows

    @property
    def slots(self) -> int:
        """Slots of each row, a multiple of the context ranks."""
        window, ranks = window_of(self.model), lax.axis_size("context")
        needed = self.rows.capacity if window is None else min(window, self.rows.capacity)
        return -(-needed // ranks) * ranks

    @property
    def indices(self) -> Int[Array, "batch local"]:
        """The index of the token in each of this rank's slots; `EMPTY` for none, or one of an earlier chunk."""
        ranks, last = lax.axis_size("context"), self.rows.lengths[:, None] - 1
        slots = jnp.arange(self.slots // ranks) * ranks + lax.axis_index("context")
        index = last - (last - slots) % self.slots
        chunk = self.model.chunk
        return jnp.where(index >= (0 if chunk is None else last // chunk * chunk), index, EMPTY)

    def filled(self, prompts: Float[Array, "batch part kv_heads width"], dtype: jnp.dtype) -> jax.Array:
        """This rank's slots [batch, kv_heads, local, width] after prompts, from keys or values of all their tokens."""
        x, index = gather_context(prompts), self.indices
        valid = index != EMPTY
        entries = jnp.take_along_axis(x, jnp.where(valid, index, 0)[:, :, None, None], axis=1)
        return jnp.where(valid[:, :, None, None], entries, jnp.zeros((), x.dtype)).swapaxes(1, 2).astype(dtype)

    def stored(
        self, cached: Float[Array, "batch kv_heads local width"], new: Float[Array, "one batch kv_heads width"]
    ) -> Float[Array, "batch kv_heads local width"]:
        """`cached` with the last token's keys or values in their slot, on the rank that has it."""
        ranks, batch, new = lax.axis_size("context"), jnp.arange(new.shape[1]), new[0]
        slot = (self.rows.lengths - 1) % self.slots
        mine: Bool[Array, " batch"] = slot % ranks == lax.axis_index("context")
        at = batch, slice(None), slot // ranks
        return cached.at[at].set(jnp.where(mine[:, None, None], new.astype(cached.dtype), cached[at]))

    def attend(
        self, q: Float[Array, "one batch heads width"], keys: jax.Array, values: jax.Array, *sinks: jax.Array
    ) -> Float[Array, "one batch heads value_width"]:
        """Attention of one token of each row, side by side as one row, over the slots."""
        model = self.model
        out = tree_attention(
            q[0], keys.swapaxes(1, 2), values.swapaxes(1, 2),
            mask=Mask(causal=True, window=window_of(model)), q_indices=self.rows.lengths - 1, kv_indices=self.indices,
            scale=attention_scale(model), softcap=model.attention_softcap, sinks=sinks[0] if sinks else None,
        )  # fmt: skip
        return vary(out)[None]
