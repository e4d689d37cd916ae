"""Gradient of the queries: one tile of 128 queries at a time, over the blocks of keys that its mask keeps.

Three matmuls a block: scores and probabilities recomputed from the saved log-sum-exp, their gradient, and its product
with the keys (FlashAttention-2, arXiv:2307.08691, section 3.1). A tile is summed by one consumer in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.attention.mosaic.kernel import Arrays, Kernel, Options
from pallas_kernels.attention.mosaic.loading import load_by_queries
from pallas_kernels.attention.mosaic.matmuls import product, products
from pallas_kernels.attention.mosaic.memory import Loaded, tiled
from pallas_kernels.attention.mosaic.registers import across, column_values, down, full, row_values
from pallas_kernels.attention.mosaic.schedule import CONSUMERS, ROWS, blocks_of, for_each_block, zero


@dataclass(frozen=True)
class QueryGradientTiles:
    """Tile sizes of the kernel; static."""

    keys: int
    """Keys of a block: a multiple of 16."""
    stages: int
    """Blocks of keys and values in shared memory."""


def query_gradients(
    arrays: Arrays, tiles: QueryGradientTiles, options: Options
) -> Float[Array, "batch padded_queries heads width"]:
    """The gradient in float32, also of the padding of queries."""
    batch, _, heads, width = arrays.q.shape
    body = _QueryGradients.by_queries(arrays, tiles, options)
    result = jax.ShapeDtypeStruct((batch, arrays.queries.shape[2], heads, width), jnp.float32)
    return body.launch(arrays, result, "query_gradients", options.interpret)


class _Memory(NamedTuple):
    """Buffers in shared memory."""

    queries: Loaded
    """A half for each consumer: queries, gradients of the output, statistics, limits."""
    keys: Loaded
    """Blocks: keys, their tokens."""
    values: Loaded
    scratch: Any


class _Tile(NamedTuple):
    """A consumer's state for its current tile."""

    warpgroup: Any
    done: Any
    """Blocks of the tiles before."""
    limits: tuple[Any, ...]
    """Limits of the consumer's queries."""
    lse: Any
    delta: Any


@dataclass(frozen=True)
class _QueryGradients(Kernel):
    """The kernel for gradients of queries."""

    tiles: QueryGradientTiles

    def memory(self, value_width: int) -> _Memory:
        block, stages, width, dtype = self.tiles.keys, self.tiles.stages, self.width, self.dtype
        of_query = (2, jnp.float32), (self.limits.query_rows, jnp.int32)
        return _Memory(
            queries=Loaded.of(CONSUMERS, 1, ROWS, (width, value_width), dtype, *of_query),
            keys=Loaded.of(stages, CONSUMERS, block, (width,), dtype, (self.limits.key_rows, jnp.int32)),
            values=Loaded.of(stages, CONSUMERS, block, (value_width,), dtype),
            scratch=tiled((CONSUMERS, ROWS, block), dtype) if self.matmuls.needs_scratch else None,
        )

    def produce(self, arrays: Arrays, memory: _Memory) -> None:
        load_by_queries(
            self.schedule, arrays, memory, group=self.group, block=self.tiles.keys,
            of_queries=lambda row, head, rows: (
                arrays.q.at[row, rows, head], arrays.d_out.at[row, rows, head],
                arrays.statistics.at[row, head, :, rows], arrays.queries.at[row, :, rows],
            ),
        )  # fmt: skip

    def consume(self, arrays: Arrays, memory: _Memory, warpgroup: Any) -> None:
        memory.keys.release_all()
        memory.values.release_all()
        memory.queries.release(warpgroup)
        differentiate = partial(self.differentiate, arrays, memory, warpgroup)
        self.schedule.for_each_tile(arrays.visits.order, differentiate, jnp.int32(0))

    def differentiate(
        self, arrays: Arrays, memory: _Memory, warpgroup: Any, row: Any, tile: Any, head: Any, done: Any
    ) -> Any:
        """Compute this consumer's half of a tile."""
        full_blocks, visited = blocks_of(arrays.visits, row, tile)
        memory.queries.wait(warpgroup)
        _, _, statistics, limits = memory.queries.at(warpgroup)
        of_query = tuple(row_values(limits.at[i]) for i in range(self.limits.query_rows))
        at = _Tile(warpgroup, done, of_query, *(row_values(statistics.at[i]) for i in range(2)))
        dq = for_each_block((full_blocks, visited), partial(self.step, memory, at), full((ROWS, self.width), 0.0))
        memory.queries.release(warpgroup)
        arrays.results[0][row, self.schedule.rows_of(tile, warpgroup), head] = dq * self.scores.scale
        return done + visited

    def step(self, memory: _Memory, at: _Tile, index: Any, dq: jax.Array, *, masked: bool) -> jax.Array:
        """A block of keys: probabilities, the gradient of the scores, and what it makes of the keys."""
        nothing, shape = zero(at.done + index), (ROWS, self.tiles.keys)
        slot = memory.keys.slot(at.done + index) + nothing
        memory.keys.wait(slot)
        (q, d_out, _, _), (k, tokens), (v,) = (
            memory.queries.at(at.warpgroup + nothing), memory.keys.at(slot), memory.values.at(slot)
        )  # fmt: skip
        of_scores, of_dp = (q, k.transpose((1, 0))), (d_out, v.transpose((1, 0)))
        wait_for_values = lambda: memory.values.wait(slot)
        together = self.width <= 192  # so wide a sum as 256 leaves no registers for two products at once

        def weights(raw: jax.Array) -> jax.Array:
            p = self.scores.probabilities(raw, across(at.lse, shape))
            if masked:
                of_key = lambda i: down(column_values(tokens.at[i]), shape)
                p = self.limits.hide(p, 0.0, lambda i: across(at.limits[i], shape), of_key)
            weight = self.scores.weight(raw, p)
            if together:
                self.matmuls.settle(weight)
            return weight

        if together:
            weight, dp = products(of_scores, of_dp, wait_for_values, weights)
        else:
            weight, dp = weights(product(*of_scores, wait_for_values)), None
        less = across(at.delta, shape)
        slope = self.matmuls.add_shared(-less, *of_dp) if dp is None else dp - less
        memory.values.release(slot)
        scratch = memory.scratch.at[at.warpgroup] if memory.scratch is not None else None
        dq = self.matmuls.add(dq, (weight * slope).astype(self.dtype), k, scratch)
        memory.keys.release(slot)
        return dq
