"""The loads of attention's producers: the operands of each tile, then the blocks of the other side that it visits.

`memory` are the buffers in shared memory, each a NamedTuple of one kernel.
`load_by_queries` reads `arrays.k`, `v`, `keys` (their limits) and `visits`, and fills `memory.queries`, `keys` and
`values`; `load_by_keys` also reads `arrays.q`, `queries` (their limits), `d_out` and `statistics`, and fills
`memory.keys`, `queries` and `d_out`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.mosaic.kernel import Arrays
from pallas_kernels.attention.mosaic.schedule import CONSUMERS, Schedule, block_rows, blocks_of


def load_by_queries(
    schedule: Schedule,
    arrays: Arrays,
    memory: Any,
    *,
    group: int,
    block: int,
    of_queries: Callable[[Any, Any, Any], tuple],
) -> None:
    """The producer of kernels whose tiles are queries: a part for each consumer, then the blocks of keys, then values.

    `of_queries` has what a batch row, head and rows of a tile are loaded from; `group` heads share a KV head.
    """

    def load_tile(row: Any, tile: Any, head: Any, done: Any) -> Any:
        _, visited = blocks_of(arrays.visits, row, tile)
        kv_head = lax.div(head, jnp.int32(group))
        for part in range(CONSUMERS):
            memory.queries.load(part, *of_queries(row, head, schedule.rows_of(tile, part)))

        def load_block(index: Any, _: None) -> None:
            rows, slot = block_rows(arrays.visits, row, tile, index, block), memory.keys.slot(done + index)
            memory.keys.load(slot, arrays.k.at[row, rows, kv_head], arrays.keys.at[row, :, rows])
            memory.values.load(slot, arrays.v.at[row, rows, kv_head])

        lax.fori_loop(0, visited, load_block, None)
        return done + visited

    schedule.for_each_tile(arrays.visits.order, load_tile, jnp.int32(0))
    for loaded in (memory.queries, memory.keys, memory.values):
        loaded.drain()


def load_by_keys(schedule: Schedule, arrays: Arrays, memory: Any, *, group: int, block: int) -> None:
    """The producer of the kernel whose tiles are keys: a half for each consumer, then the blocks of queries of all
    `group` heads."""

    def load_tile(row: Any, tile: Any, kv_head: Any, done: Any) -> Any:
        _, visited = blocks_of(arrays.visits, row, tile)
        for half in range(CONSUMERS):
            rows = schedule.rows_of(tile, half)
            keys, values = (x.at[row, rows, kv_head] for x in (arrays.k, arrays.v))
            memory.keys.load(half, keys, values, arrays.keys.at[row, :, rows])
        blocks = visited * group

        def load_block(n: Any, _: None) -> None:
            head, slot = kv_head * group + lax.div(n, visited), memory.queries.slot(done + n)
            rows = block_rows(arrays.visits, row, tile, lax.rem(n, visited), block)
            statistics, limits = arrays.statistics.at[row, head, :, rows], arrays.queries.at[row, :, rows]
            memory.queries.load(slot, arrays.q.at[row, rows, head], statistics, limits)
            memory.d_out.load(slot, arrays.d_out.at[row, rows, head])

        lax.fori_loop(0, blocks, load_block, None)
        return done + blocks

    schedule.for_each_tile(arrays.visits.order, load_tile, jnp.int32(0))
    for loaded in (memory.keys, memory.queries, memory.d_out):
        loaded.drain()
