"""What attention needs to know of the tokens of a row that is split over the context axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
from jax import lax
from jaxtyping import Array, Int

from pallas_kernels.attention import Tokens
from pallas_kernels.masks import Mask

type Order = Literal["contiguous", "zigzag", "striped"]


@dataclass(frozen=True)
class ContextLayout:
    """How context ranks share the tokens and the heads of a row; static under jit."""

    order: Order = "contiguous"
    """Of the tokens, one of `jaxpar.attention.balance.ORDERS`."""
    ulysses: int = 1
    """Neighbouring ranks that exchange sequence for heads: 1 none, `context` all of them."""


class RowTokens(NamedTuple):
    """This rank's part of its rows, and the whole rows as the context ranks hold them, one part after another."""

    slots: Int[Array, "batch part"]
    """Index of each token in its row."""
    segments: Int[Array, "batch part"]
    """Document of each token in its row, from 1; 0 is padding."""
    row_slots: Int[Array, "batch seq"]
    row_segments: Int[Array, "batch seq"]

    def seen(self, mask: Mask, queries: tuple[jax.Array, int] | None, keys: tuple[jax.Array, int] | None) -> Tokens:
        """Tokens of some queries and keys, each a group of ranks (number of the group, ranks in a group).

        None means this rank's own queries, and the keys of all ranks.
        """
        q_slots, q_segments = (self.slots, self.segments) if queries is None else self._of(*queries)
        kv_slots, kv_segments = (self.row_slots, self.row_segments) if keys is None else self._of(*keys)
        if not mask.segmented:
            return Tokens(q_slots, kv_slots)
        return Tokens(q_slots, kv_slots, q_segments, kv_segments)

    def _of(self, group: jax.Array, ranks: int) -> tuple[jax.Array, jax.Array]:
        length = ranks * self.slots.shape[1]
        cut = lambda row: lax.dynamic_slice_in_dim(row, group * length, length, axis=1)
        return cut(self.row_slots), cut(self.row_segments)
