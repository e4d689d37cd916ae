"""Token arrays that attention needs for a row that is split over the context axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
from jax import lax
from jaxtyping import Array, Int

from pallas_kernels.attention import MaskInputs, Settings
from pallas_kernels.attention.registry import Implementation
from pallas_kernels.masks import Mask

type Order = Literal["contiguous", "zigzag", "striped"]


@dataclass(frozen=True)
class ContextLayout:
    """Division of a row's tokens and heads among context ranks; static under jit."""

    order: Order = "contiguous"
    """Order of the tokens, one of `jaxpar.attention.balance.ORDERS`."""
    ulysses: int = 1
    """Neighbouring ranks in a group that exchanges sequence for heads: 1 for no exchange, `context` for Ulysses."""


class ContextAttention(NamedTuple):
    """Static arguments, under jit, of attention over a row that is split over the context axis."""

    backend: Implementation
    settings: Settings
    layout: ContextLayout


class RowTokens(NamedTuple):
    """The local part of the rows, and the full rows: the parts of the context ranks, concatenated."""

    indices: Int[Array, "batch part"]
    """Index of each token in its row."""
    segments: Int[Array, "batch part"]
    """Document of each token in its row, from 1; 0 is padding."""
    row_indices: Int[Array, "batch seq"]
    row_segments: Int[Array, "batch seq"]

    def seen(self, mask: Mask, queries: tuple[jax.Array, int] | None, keys: tuple[jax.Array, int] | None) -> MaskInputs:
        """The inputs of `mask` for queries and keys of groups of ranks, (index of the group, ranks in a group).

        None means the queries of this rank, and the keys of all ranks.
        """
        q_indices, q_segments = (self.indices, self.segments) if queries is None else self._group_tokens(*queries)
        kv_indices, kv_segments = (self.row_indices, self.row_segments) if keys is None else self._group_tokens(*keys)
        if not mask.segmented:
            return MaskInputs(q_indices, kv_indices)
        return MaskInputs(q_indices, kv_indices, q_segments, kv_segments)

    def _group_tokens(self, group: jax.Array, ranks: int) -> tuple[jax.Array, jax.Array]:
        length = ranks * self.indices.shape[1]
        cut = lambda row: lax.dynamic_slice_in_dim(row, group * length, length, axis=1)
        return cut(self.row_indices), cut(self.row_segments)
