"""The loads of attention's producers: the operands of each tile, then the blocks of the other side that it visits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.mosaic.bounds import Visits
from pallas_kernels.attention.mosaic.schedule import CONSUMERS, Schedule, block_rows, blocks_of


def load_by_queries(
    schedule: Schedule,
    visits: Visits,
    memory: Any,
    *,
    group: int,
    block: int,
    of_queries: Callable[[Any, Any, Any], tuple],
    of_keys: Callable[[Any, Any, Any], tuple],
    of_values: Callable[[Any, Any, Any], tuple],
) -> None:
    """The producer of kernels whose tiles are queries: a part for each consumer, then the blocks of keys, then values.

    `memory` has `queries`, `keys` and `values`, which are `Loaded`; what belongs there of a batch row, head and rows
    (for keys and values the KV head, which `group` heads share) the three functions say.
    """

    def load_tile(row: Any, tile: Any, head: Any, done: Any) -> Any:
        _, visited = blocks_of(visits, row, tile)
        kv_head = lax.div(head, jnp.int32(group))
        for part in range(CONSUMERS):
            memory.queries.load(part, *of_queries(row, head, schedule.rows_of(tile, part)))

        def load_block(index: Any, _: None) -> None:
            rows, slot = block_rows(visits, row, tile, index, block), memory.keys.slot(done + index)
            memory.keys.load(slot, *of_keys(row, kv_head, rows))
            memory.values.load(slot, *of_values(row, kv_head, rows))

        lax.fori_loop(0, visited, load_block, None)
        return done + visited

    schedule.for_each_tile(visits.order, load_tile, jnp.int32(0))
    for loaded in (memory.queries, memory.keys, memory.values):
        loaded.drain()


def load_by_keys(
    schedule: Schedule,
    visits: Visits,
    memory: Any,
    *,
    group: int,
    block: int,
    of_keys: Callable[[Any, Any, Any], tuple],
    of_queries: Callable[[Any, Any, Any], tuple],
    of_d_out: Callable[[Any, Any, Any], tuple],
) -> None:
    """The producer of kernels whose tiles are keys: a half for each consumer, then the blocks of queries of all heads.

    `memory` has `keys`, `queries` and `d_out`, which are `Loaded`; what belongs there of a batch row, head (of keys the
    KV head, which `group` heads share) and rows the three functions say.
    """

    def load_tile(row: Any, tile: Any, kv_head: Any, done: Any) -> Any:
        _, visited = blocks_of(visits, row, tile)
        for half in range(CONSUMERS):
            memory.keys.load(half, *of_keys(row, kv_head, schedule.rows_of(tile, half)))
        blocks = visited * group

        def load_block(n: Any, _: None) -> None:
            head, slot = kv_head * group + lax.div(n, visited), memory.queries.slot(done + n)
            rows = block_rows(visits, row, tile, lax.rem(n, visited), block)
            memory.queries.load(slot, *of_queries(row, head, rows))
            memory.d_out.load(slot, *of_d_out(row, head, rows))

        lax.fori_loop(0, blocks, load_block, None)
        return done + blocks

    schedule.for_each_tile(visits.order, load_tile, jnp.int32(0))
