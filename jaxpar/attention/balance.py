"""Orders of a row's tokens over the context ranks, and how they balance the work of attention.

A causal query at index s sees s + 1 keys, so the rank that holds the end of a row in its natural order has almost twice
the mean work. The other orders give each rank early and late indices alike. An order is data: the loader permutes each
row by it once, and every token carries its index, segment and position, so nothing else needs to know.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from pallas_kernels.attention.blocks import Blocks
from pallas_kernels.masks import Mask, visible_pairs, visited_blocks

ORDERS = ("contiguous", "zigzag", "striped")


def sequence_order(order: str, length: int, ranks: int) -> Int[np.ndarray, " length"]:
    """The index at each place of a row, where rank r holds the places [r * part, (r + 1) * part).

    - `contiguous`: each index at its own place. Balanced for short windows; under a causal mask the last rank has
      almost twice the mean.
    - `zigzag`: the row is cut into `2 * ranks` chunks, and rank r holds chunks r and `2 * ranks - 1 - r`, in that
      order: the causal work of all ranks is equal. (Kuaishou, USENIX ATC'24, gives rank r the chunks 2r and
      `2 * ranks - 1 - 2r`: the same pairs of chunks on other ranks, so the same balance.)
    - `striped`: rank r holds the indices r, r + ranks, ... (Striped Attention, arXiv:2311.09431): neighbouring
      indices are spread over all ranks, so packed documents are balanced too, and a window needs the keys of all ranks.

    Where rings run across groups of ranks (USP), `ranks` is the size of the ring, and the ranks of a group split the
    places of a ring rank further, in order.

    Args:
        order: One of `ORDERS`.
        length: Tokens of a row.
        ranks: Ranks that a row is split over.

    Raises:
        ValueError: If there is no such order, or `length` is no multiple of what the order cuts a row into: `ranks`
            parts, or `2 * ranks` chunks for zigzag.
    """
    if order not in ORDERS:
        raise ValueError(f"there is no order {order!r} of a sequence, only {', '.join(ORDERS)}")
    equal = pieces(order, ranks)
    if length < 1 or ranks < 1 or length % equal:
        below = length // equal * equal if ranks > 0 else 0
        near = f"{below} or {below + equal}" if below > 0 else f"{equal}"
        raise ValueError(
            f"the {order} order on {ranks} ranks cuts a row into {equal} equal pieces, and {length} tokens are no "
            f"multiple of that; {near} would be"
        )
    indices = np.arange(length, dtype=np.int32)
    if order == "zigzag":
        chunks = indices.reshape(equal, -1)
        return np.stack([chunks[:ranks], chunks[ranks:][::-1]], axis=1).reshape(-1)
    if order == "striped":
        return indices.reshape(-1, ranks).T.reshape(-1)
    return indices


def pieces(order: str, ranks: int) -> int:
    """Equal pieces that `order` cuts a row into for `ranks` ranks."""
    return 2 * ranks if order == "zigzag" else ranks


def run_length(order: str, length: int, ranks: int) -> int | None:
    """Tokens in each run of consecutive indices that a rank holds in `order`; None for one run, or for stripes."""
    return length // pieces(order, ranks) if order == "zigzag" and ranks > 1 else None


def visible_pairs_per_rank(
    mask: Mask,
    segments: Int[np.ndarray, "batch length"] | None,
    order_indices: Int[np.ndarray, " length"],
    ranks: int,
) -> Int[np.ndarray, " ranks"]:
    """The exact number of visible (query, key) pairs of each rank's queries: its work in attention.

    Args:
        mask: The mask, without a prefix.
        segments: Document of each token by its index, before any permutation, 0 for padding; each contiguous. None
            means one row that is one document. Read only where the mask is segmented, as everywhere.
        order_indices: The index at each place, as from `sequence_order`.
        ranks: Ranks that the places are split over.

    Raises:
        ValueError: If a segment of a row is not contiguous, the mask has a prefix, or the places do not divide.
    """
    rows = _rows(mask, segments, order_indices, ranks)
    visible_pairs(mask, rows)  # refuses inputs that the counts below do not cover
    pairs = np.where(rows != 0, _keys_of_queries(mask, rows), 0).sum(0)
    return pairs[order_indices].reshape(ranks, -1).sum(1)


def blocks_per_rank(
    mask: Mask,
    segments: Int[np.ndarray, "batch length"] | None,
    order_indices: Int[np.ndarray, " length"],
    ranks: int,
    query_block: int,
    kv_block: int,
    run: int | None = None,
) -> Int[np.ndarray, " ranks"]:
    """The number of pairs of blocks that each rank computes, attending to the parts of all ranks in turn.

    A block lies in one rank's part. Pairs that `pallas_kernels.masks.visited_blocks` excludes for all rows are skipped.
    Blocks are evened out, as in attention.

    Args:
        mask: The mask, without a prefix.
        segments: As for `visible_pairs_per_rank`.
        order_indices: The index at each place, as from `sequence_order`.
        ranks: Ranks that the places are split over.
        query_block: Queries held at a time.
        kv_block: Keys held at a time.
        run: `run_length` of the order; where possible, blocks do not cross its borders.
    """
    rows = _rows(mask, segments, order_indices, ranks)
    part = len(order_indices) // ranks
    indices = np.broadcast_to(order_indices, rows.shape)

    def cut(size: int) -> tuple[jax.Array, jax.Array]:
        """Indices and segments of all blocks, [blocks, batch, size], a rank's blocks together."""
        blocks = Blocks.at_most(size, part, run)
        return _split(indices, ranks, blocks), _split(rows[:, order_indices], ranks, blocks)

    (q_indices, q_segments), (kv_indices, kv_segments) = cut(query_block), cut(kv_block)
    visited = np.asarray(visited_blocks(mask, q_indices, kv_indices, q_segments, kv_segments))
    return visited.reshape(ranks, -1).sum(1)


def imbalance(work: Int[np.ndarray, " ranks"]) -> float:
    """Excess of the busiest rank's work over the mean, as a fraction of the mean: the others wait for it."""
    work = np.asarray(work)
    return float(work.max() / work.mean() - 1.0) if work.any() else 0.0


def _rows(mask: Mask, segments: np.ndarray | None, order_indices: np.ndarray, ranks: int) -> np.ndarray:
    """The segments that matter, [batch, length]."""
    if mask.prefix:
        raise ValueError("the work of a mask with a prefix is not counted per rank")
    length = len(order_indices)
    if length % ranks:
        raise ValueError(f"{length} tokens do not divide into the parts of {ranks} ranks")
    if segments is None:
        return np.ones((1, length), np.int32)
    if segments.ndim != 2 or segments.shape[1] != length:
        raise ValueError(f"segments have shape {segments.shape}, where the order has rows of {length}")
    return np.asarray(segments) if mask.segmented else np.ones_like(segments)


def _keys_of_queries(mask: Mask, rows: np.ndarray) -> np.ndarray:
    """[batch, length]: how many keys each query keeps within its run of equal segments."""
    indices = np.arange(rows.shape[1], dtype=np.int64)
    edge = rows[:, 1:] != rows[:, :-1]
    first = np.where(np.pad(edge, ((0, 0), (1, 0)), constant_values=True), indices, 0)
    first = np.maximum.accumulate(first, axis=1)
    last = np.where(np.pad(edge, ((0, 0), (0, 1)), constant_values=True), indices, rows.shape[1])
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    back = indices - first + 1
    back = back if mask.window is None else np.minimum(back, mask.window)
    if mask.causal:
        return back
    ahead = last - indices
    return back + (ahead if mask.window is None else np.minimum(ahead, mask.window - 1))


def _split(x: np.ndarray, ranks: int, blocks: Blocks) -> jax.Array:
    """[batch, length] -> [ranks * blocks, batch, size]; the last block of a rank repeats its last token."""
    x = x.reshape(len(x), ranks, -1)
    missing = blocks.count * blocks.size - x.shape[2]
    x = np.pad(x, ((0, 0), (0, 0), (0, missing)), mode="edge")
    return jnp.asarray(np.moveaxis(x.reshape(len(x), ranks * blocks.count, blocks.size), 0, 1))
