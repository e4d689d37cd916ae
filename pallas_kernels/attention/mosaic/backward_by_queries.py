"""Gradient of the queries: one tile of 128 queries at a time, over the blocks of keys that its mask keeps.

Three matmuls a block: scores and probabilities anew from the saved log-sum-exp, their gradient, and its product with
the keys (FlashAttention-2, arXiv:2307.08691, section 3.1). A tile is summed by one consumer in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.attention.mosaic.bounds import Limits, Visits
from pallas_kernels.attention.mosaic.matmuls import product, products
from pallas_kernels.attention.mosaic.schedule import (
    CONSUMERS,
    ROWS,
    TILE,
    Schedule,
    across,
    column_values,
    down,
    full,
    row_values,
    scalar,
    specialise,
    tiled,
    zero,
)
from pallas_kernels.attention.mosaic.scores import Scores


@dataclass(frozen=True)
class QueryGradientTiles:
    """How the kernel is cut; static."""

    keys: int
    """Keys of a block: a multiple of 16."""
    stages: int
    """Blocks of keys and values in shared memory."""


def query_gradients(
    q: Float[Array, "batch queries heads width"],
    k: Float[Array, "batch keys kv_heads width"],
    v: Float[Array, "batch keys kv_heads value_width"],
    d_out: Float[Array, "batch queries heads value_width"],
    statistics: Float[Array, "batch heads 2 padded_queries"],
    queries: Int[Array, "batch rows padded_queries"],
    keys: Int[Array, "batch key_rows padded_keys"],
    visits: Visits,
    *,
    limits: Limits,
    scores: Scores,
    tiles: QueryGradientTiles,
    matmuls: Any,
    programs: int,
    interpret: Any = None,
) -> Float[Array, "batch padded_queries heads width"]:
    """The gradient in float32, also of the padding of queries. `statistics` is what `scores.statistics` gives."""
    batch, _, heads, width = q.shape
    group, value_width, dtype = heads // k.shape[2], v.shape[3], q.dtype
    block, stages = tiles.keys, tiles.stages
    head_bytes = k.shape[1] * (width + value_width) * dtype.itemsize
    schedule = Schedule.of(queries.shape[2] // TILE, batch, heads, head_bytes, group, programs)

    overlapped = width <= 192  # a wider sum leaves no registers for two products at once

    def kernel(
        q_ref, k_ref, v_ref, d_out_ref, statistics_ref, queries_ref, keys_ref, blocks_ref, counts_ref, order_ref,
        dq_ref, q_tile, d_out_tile, k_tiles, v_tiles, statistics_tile, q_limits, key_tiles, scratch,
        q_ready, q_free, k_ready, k_free, v_ready, v_free,
    ) -> None:  # fmt: skip
        def produce() -> None:
            def per_tile(row: Any, tile: Any, head: Any, done: Any) -> Any:
                kept = scalar(counts_ref, row, tile, 1)
                kv_head = lax.div(head, jnp.int32(group))
                for half in range(CONSUMERS):
                    rows, ready = pl.ds(tile * TILE + half * ROWS, ROWS), q_ready.at[half]
                    plgpu.barrier_wait(q_free.at[half])
                    plgpu.copy_gmem_to_smem(q_ref.at[row, rows, head], q_tile.at[half], ready)
                    plgpu.copy_gmem_to_smem(d_out_ref.at[row, rows, head], d_out_tile.at[half], ready)
                    plgpu.copy_gmem_to_smem(statistics_ref.at[row, head, :, rows], statistics_tile.at[half], ready)
                    plgpu.copy_gmem_to_smem(queries_ref.at[row, :, rows], q_limits.at[half], ready)

                def per_block(index: Any, _: None) -> None:
                    rows = pl.ds(scalar(blocks_ref, row, tile, index) * block, block)
                    slot = lax.rem(done + index, jnp.int32(stages))
                    plgpu.barrier_wait(k_free.at[slot])
                    plgpu.copy_gmem_to_smem(k_ref.at[row, rows, kv_head], k_tiles.at[slot], k_ready.at[slot])
                    plgpu.copy_gmem_to_smem(keys_ref.at[row, :, rows], key_tiles.at[slot], k_ready.at[slot])
                    plgpu.barrier_wait(v_free.at[slot])
                    plgpu.copy_gmem_to_smem(v_ref.at[row, rows, kv_head], v_tiles.at[slot], v_ready.at[slot])

                lax.fori_loop(0, kept, per_block, None)
                return done + kept

            schedule.for_each_tile(order_ref, per_tile, jnp.int32(0))
            for half in range(CONSUMERS):
                plgpu.barrier_wait(q_free.at[half])
            for slot in range(stages):
                plgpu.barrier_wait(k_free.at[slot])
                plgpu.barrier_wait(v_free.at[slot])

        def consume(warpgroup: Any) -> None:
            for slot in range(stages):
                plgpu.barrier_arrive(k_free.at[slot])
                plgpu.barrier_arrive(v_free.at[slot])
            plgpu.barrier_arrive(q_free.at[warpgroup])

            def per_tile(row: Any, tile: Any, head: Any, done: Any) -> Any:
                whole, kept = scalar(counts_ref, row, tile, 0), scalar(counts_ref, row, tile, 1)
                shape = (ROWS, block)
                plgpu.barrier_wait(q_ready.at[warpgroup])
                of_query = tuple(row_values(q_limits.at[warpgroup, i]) for i in range(limits.query_rows))
                lse, inner = (row_values(statistics_tile.at[warpgroup, i]) for i in range(2))

                def per_block(index: Any, dq: jax.Array, *, masked: bool) -> jax.Array:
                    nothing = zero(done + index)
                    own, slot = warpgroup + nothing, lax.rem(done + index, jnp.int32(stages)) + nothing
                    plgpu.barrier_wait(k_ready.at[slot])
                    of_scores = (q_tile.at[own], k_tiles.at[slot].transpose((1, 0)))
                    of_dp = (d_out_tile.at[own], v_tiles.at[slot].transpose((1, 0)))
                    wait_for_values = lambda: plgpu.barrier_wait(v_ready.at[slot])
                    dp = None
                    if overlapped:
                        raw, dp = products(of_scores, of_dp, wait_for_values)
                    else:
                        raw = product(*of_scores, wait_for_values)
                    p = scores.probabilities(raw, across(lse, shape))
                    if masked:
                        of_key = lambda i: down(column_values(key_tiles.at[slot, i]), shape)
                        p = limits.hide(p, 0.0, lambda i: across(of_query[i], shape), of_key)
                    weight, less = scores.weight(raw, p), across(inner, shape)
                    slope = matmuls.add_shared(-less, *of_dp) if dp is None else dp - less
                    plgpu.barrier_arrive(v_free.at[slot])
                    ds = weight * slope
                    held = scratch.at[warpgroup] if scratch is not None else None
                    dq = matmuls.add(dq, ds.astype(dtype), k_tiles.at[slot], held)
                    plgpu.barrier_arrive(k_free.at[slot])
                    return dq

                dq = full((ROWS, width), 0.0)
                dq = lax.fori_loop(0, whole, lambda i, s: per_block(i, s, masked=False), dq)
                dq = lax.fori_loop(whole, kept, lambda i, s: per_block(i, s, masked=True), dq)
                plgpu.barrier_arrive(q_free.at[warpgroup])
                dq_ref[row, pl.ds(tile * TILE + warpgroup * ROWS, ROWS), head] = dq * scores.scale
                return done + kept

            schedule.for_each_tile(order_ref, per_tile, jnp.int32(0))

        specialise(consume, produce)

    run = plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((batch, queries.shape[2], heads, width), jnp.float32),
        scratch_types=[
            tiled((CONSUMERS, ROWS, width), dtype),
            tiled((CONSUMERS, ROWS, value_width), dtype),
            tiled((stages, block, width), dtype),
            tiled((stages, block, value_width), dtype),
            plgpu.SMEM((CONSUMERS, 2, ROWS), jnp.float32),
            plgpu.SMEM((CONSUMERS, limits.query_rows, ROWS), jnp.int32),
            plgpu.SMEM((stages, limits.key_rows, block), jnp.int32),
            tiled((CONSUMERS, ROWS, block), dtype) if matmuls.needs_scratch else None,
            plgpu.Barrier(num_barriers=CONSUMERS, num_arrivals=4),
            plgpu.Barrier(num_barriers=CONSUMERS),
            plgpu.Barrier(num_barriers=stages, num_arrivals=2),
            plgpu.Barrier(num_barriers=stages, num_arrivals=CONSUMERS),
            plgpu.Barrier(num_barriers=stages),
            plgpu.Barrier(num_barriers=stages, num_arrivals=CONSUMERS),
        ],
        compiler_params=plgpu.CompilerParams(approx_math=True),
        grid=(schedule.programs,),
        grid_names=("program",),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        kernel_name="attention_query_gradients",
        interpret=interpret,
    )
    return run(q, k, v, d_out, statistics, queries, keys, visits.blocks, visits.counts, visits.order)
