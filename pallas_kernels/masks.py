"""The keys that a query may attend to: the one definition that every attention, count and test uses.

A token is known by its *index* in its row, its *segment* (document in its row, from 1; 0 is padding) and its
row's *prefix length* (in tokens). Indices need not be contiguous: a rank can hold any part of a row. A pair is kept if

    (not causal  or  kv_index <= q_index  or  (prefix and kv_index < prefix_length))
    and (no window  or  q_index - kv_index < window  and  (causal  or  kv_index - q_index < window))
    and (not segmented  or  (q_segment == kv_segment and kv_segment != 0))

So the prefix lifts causality alone: a window and segments limit it too. A window counts the token itself; it limits the
look back, and where the mask is not causal the look ahead alike. A query of segment 0 sees nothing where the mask is
segmented.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

type Kind = Literal["full", "causal", "window", "packed"]
"""Kinds of masks that tiles are chosen by: what a mask leaves of the blocks at its edges."""
KINDS: tuple[Kind, ...] = get_args(Kind.__value__)


@dataclass(frozen=True)
class Mask:
    """Kind of mask; static under jit. Values that differ between rows are passed with the tokens."""

    causal: bool = True
    """A query sees no key of a later index."""
    window: int | None = None
    """A query sees itself and the `window - 1` indices before it, and after it if not causal; None means no limit."""
    segmented: bool = False
    """A query sees the keys of its own segment only."""
    prefix: bool = False
    """The first `prefix_length` indices of a row are seen by every query of the row (prefix LM, arXiv:1910.10683)."""

    def __post_init__(self):
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window counts the token itself, so it must be at least 1, got {self.window}")

    @property
    def kind(self) -> Kind:
        """Documents before a window before causality: that which cuts a row into the shortest pieces."""
        if self.segmented:
            return "packed"
        if self.window is not None:
            return "window"
        return "causal" if self.causal else "full"


def allowed(
    mask: Mask,
    q_indices: Int[Array, "batch q"],
    kv_indices: Int[Array, "batch k"],
    q_segments: Int[Array, "batch q"] | None = None,
    kv_segments: Int[Array, "batch k"] | None = None,
    prefix_lengths: Int[Array, " batch"] | None = None,
) -> Bool[Array, "batch q k"]:
    """The kept pairs. Segments are read only where the mask is segmented, prefix lengths only where it has a prefix."""
    segments: tuple = (None, None)
    if mask.segmented:
        q_segment, kv_segment = _needed(q_segments, "q_segments"), _needed(kv_segments, "kv_segments")
        segments = q_segment[:, :, None], kv_segment[:, None, :]
    prefix = _needed(prefix_lengths, "prefix_lengths")[:, None, None] if mask.causal and mask.prefix else None
    return keeps(mask, q_indices[:, :, None], kv_indices[:, None, :], segments[0], segments[1], prefix)


def keeps(
    mask: Mask,
    q_index: Int[Array, "..."],
    kv_index: Int[Array, "..."],
    q_segment: Int[Array, "..."] | None = None,
    kv_segment: Int[Array, "..."] | None = None,
    prefix_length: Int[Array, "..."] | None = None,
) -> Bool[Array, "..."]:
    """Whether each pair is kept, of arrays that broadcast together: the definition above, for kernels to call."""
    pairs = jnp.ones(jnp.broadcast_shapes(q_index.shape, kv_index.shape), dtype=bool)
    if mask.causal:
        visible = kv_index <= q_index
        if mask.prefix:
            visible |= kv_index < _needed(prefix_length, "prefix_lengths")
        pairs &= visible
    if mask.window is not None:
        pairs &= q_index - kv_index < mask.window
        if not mask.causal:
            pairs &= kv_index - q_index < mask.window
    if mask.segmented:
        q_segment, kv_segment = _needed(q_segment, "q_segments"), _needed(kv_segment, "kv_segments")
        pairs &= (q_segment == kv_segment) & (kv_segment != 0)
    return pairs


def visited_blocks(
    mask: Mask,
    q_indices: Int[Array, "q_blocks batch q"],
    kv_indices: Int[Array, "kv_blocks batch k"],
    q_segments: Int[Array, "q_blocks batch q"] | None = None,
    kv_segments: Int[Array, "kv_blocks batch k"] | None = None,
    prefix_lengths: Int[Array, " batch"] | None = None,
) -> Bool[Array, "q_blocks kv_blocks"]:
    """Blocks of pairs that must be computed: False only where `allowed` keeps no pair of the block, in any row.

    From the least and greatest index and segment of each block alone, so a block may be called kept though it is empty.
    """
    return blocks_of_rows(mask, q_indices, kv_indices, q_segments, kv_segments, prefix_lengths)[0].any(-1)


def blocks_of_rows(
    mask: Mask,
    q_indices: Int[Array, "q_blocks batch q"],
    kv_indices: Int[Array, "kv_blocks batch k"],
    q_segments: Int[Array, "q_blocks batch q"] | None = None,
    kv_segments: Int[Array, "kv_blocks batch k"] | None = None,
    prefix_lengths: Int[Array, " batch"] | None = None,
) -> tuple[Bool[Array, "q_blocks kv_blocks batch"], Bool[Array, "q_blocks kv_blocks batch"]]:
    """`visited_blocks` row by row, and blocks that need no look at their pairs: True only where `allowed` keeps every
    pair of the block. The latter may be called partial though the mask keeps all of them."""
    first_q, last_q = q_indices.min(-1)[:, None], q_indices.max(-1)[:, None]
    first_kv, last_kv = kv_indices.min(-1)[None], kv_indices.max(-1)[None]
    visited = full = jnp.ones(jnp.broadcast_shapes(first_q.shape, first_kv.shape), dtype=bool)
    if mask.causal:
        some, every = first_kv <= last_q, last_kv <= first_q
        if mask.prefix:
            prefix = _needed(prefix_lengths, "prefix_lengths")
            some, every = some | (first_kv < prefix), every | (last_kv < prefix)
        visited, full = visited & some, full & every
    if mask.window is not None:
        visited &= first_q - last_kv < mask.window
        full &= last_q - first_kv < mask.window
        if not mask.causal:
            visited &= first_kv - last_q < mask.window
            full &= last_kv - first_q < mask.window
    if mask.segmented:
        q_segment = jnp.asarray(_needed(q_segments, "q_segments"))
        kv_segment = jnp.asarray(_needed(kv_segments, "kv_segments"))
        first = lambda segment: jnp.where(segment == 0, jnp.iinfo(segment.dtype).max, segment).min(-1)
        visited &= first(kv_segment)[None] <= q_segment.max(-1)[:, None]
        visited &= first(q_segment)[:, None] <= kv_segment.max(-1)[None]
        segment = kv_segment.min(-1)[None]
        full &= (segment == kv_segment.max(-1)[None]) & (segment != 0)
        full &= (segment == q_segment.min(-1)[:, None]) & (segment == q_segment.max(-1)[:, None])
    return visited, full


def visible_pairs(
    mask: Mask, tokens: int | Int[np.ndarray, "batch seq"], prefix_lengths: Int[np.ndarray, " batch"] | None = None
) -> int:
    """The exact number of (query, key) pairs that `allowed` keeps over full rows, without listing the pairs.

    Args:
        mask: The mask.
        tokens: The segments of a batch of rows, or the length of a single row that is one segment.
        prefix_lengths: In indices, per row; needed where the mask has a prefix.

    Raises:
        ValueError: If a segment of a row is not contiguous, as the closed forms assume.
    """
    rows = np.ones((1, tokens), np.int32) if isinstance(tokens, int) else np.asarray(tokens)
    row, start, length = _runs(rows if mask.segmented else np.ones_like(rows))
    back = length if mask.window is None else np.minimum(length, mask.window)
    pairs = back * (back + 1) // 2 + (length - back) * back
    if not mask.causal:
        pairs += pairs - length  # as many after a token as before it
    elif mask.prefix:
        lengths = np.asarray(_needed(prefix_lengths, "prefix_lengths"), np.int64)
        inside = np.clip(lengths[row] - start, 0, length)
        pairs += inside * (inside - 1) // 2
    return int(pairs.sum())


def _runs(segments: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, first index and length of each run of equal non-zero segments, as int64."""
    width = segments.shape[1]
    first = np.ones(segments.shape, bool)
    first[:, 1:] = segments[:, 1:] != segments[:, :-1]
    start = np.flatnonzero(first)
    length = np.diff(start, append=segments.size)
    segment = segments.reshape(-1)[start]
    start, length, segment = start[segment != 0], length[segment != 0], segment[segment != 0]
    row = start // width
    if len(np.unique(row * (int(segments.max(initial=0)) + 1) + segment)) != len(row):
        raise ValueError("a segment appears twice in a row with another between: segments must be contiguous")
    return row, start % width, length


def _needed[T](value: T | None, name: str) -> T:
    if value is None:
        raise ValueError(f"this mask needs {name}")
    return value
