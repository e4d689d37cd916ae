"""Forward: one tile of 128 queries at a time, over the blocks of keys that its mask keeps.

The online softmax in base 2, with the two consumers taking turns on the tensor cores: while one multiplies, the other
exponentiates (the ping-pong schedule of FlashAttention-3, arXiv:2407.08608, section 3.1).
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
from pallas_kernels.attention.mosaic.matmuls import product
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
from pallas_kernels.attention.mosaic.scores import LOG2_E, Scores


@dataclass(frozen=True)
class ForwardTiles:
    """How the kernel is cut; static."""

    keys: int
    """Keys of a block: a multiple of 16."""
    stages: int
    """Blocks of keys and values in shared memory."""
    own_output: bool = True
    """The output has shared memory of its own, so that queries arrive while it leaves; else it takes theirs."""


def forward_kernel(
    q: Float[Array, "batch queries heads width"],
    k: Float[Array, "batch keys kv_heads width"],
    v: Float[Array, "batch keys kv_heads value_width"],
    queries: Int[Array, "batch rows padded_queries"],
    keys: Int[Array, "batch key_rows padded_keys"],
    visits: Visits,
    *,
    limits: Limits,
    scores: Scores,
    tiles: ForwardTiles,
    matmuls: Any,
    programs: int,
    exact: bool = False,
    interpret: Any = None,
) -> tuple[Float[Array, "batch some_queries heads value_width"], Float[Array, "batch heads padded_queries"]]:
    """Output, and log-sum-exp in float32, the latter also of the padding of queries.

    The output leaves by TMA in q's dtype; with `exact` from the registers in float32, then with the padding too.
    """
    batch, length, heads, width = q.shape
    group, value_width, dtype = heads // k.shape[2], v.shape[3], q.dtype
    block, stages = tiles.keys, tiles.stages
    head_bytes = k.shape[1] * (width + value_width) * dtype.itemsize
    schedule = Schedule.of(queries.shape[2] // TILE, batch, heads, head_bytes, group, programs)
    exponent = scores.exponent

    def kernel(
        q_ref, k_ref, v_ref, queries_ref, keys_ref, blocks_ref, counts_ref, order_ref, out_ref, lse_ref,
        q_tile, k_tiles, v_tiles, own_out_tile, lse_tile, q_limits, key_tiles, scratch,
        q_ready, q_free, k_ready, k_free, v_ready, v_free, turn,
    ) -> None:  # fmt: skip
        out_tile = own_out_tile if tiles.own_output else q_tile

        def produce() -> None:
            def per_tile(row: Any, tile: Any, head: Any, done: Any) -> Any:
                kept = scalar(counts_ref, row, tile, 1)
                kv_head = lax.div(head, jnp.int32(group))
                for half in range(CONSUMERS):
                    rows = pl.ds(tile * TILE + half * ROWS, ROWS)
                    plgpu.barrier_wait(q_free.at[half])
                    plgpu.copy_gmem_to_smem(q_ref.at[row, rows, head], q_tile.at[half], q_ready.at[half])
                    plgpu.copy_gmem_to_smem(queries_ref.at[row, :, rows], q_limits.at[half], q_ready.at[half])

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
            def take_turn() -> None:
                plgpu.barrier_arrive(turn)
                plgpu.barrier_wait(turn)

            for slot in range(stages):
                plgpu.barrier_arrive(k_free.at[slot])
                plgpu.barrier_arrive(v_free.at[slot])
            plgpu.barrier_arrive(q_free.at[warpgroup])

            def per_tile(row: Any, tile: Any, head: Any, done: Any) -> Any:
                whole, kept = scalar(counts_ref, row, tile, 0), scalar(counts_ref, row, tile, 1)
                plgpu.barrier_wait(q_ready.at[warpgroup])
                of_query = tuple(row_values(q_limits.at[warpgroup, i]) for i in range(limits.query_rows))

                def wait_for_keys(index: Any) -> None:
                    @pl.when(index < kept)
                    def _() -> None:
                        plgpu.barrier_wait(k_ready.at[lax.rem(done + index, jnp.int32(stages))])

                def per_block(index: Any, state: tuple, *, masked: bool) -> tuple:
                    out, peak, total = state
                    shape = (ROWS, block)
                    slot = lax.rem(done + index, jnp.int32(stages))
                    s = product(
                        q_tile.at[warpgroup + zero(done + index)], k_tiles.at[slot].transpose((1, 0)), take_turn
                    )
                    s = scores.capped(s)
                    if masked:
                        of_key = lambda i: down(column_values(key_tiles.at[slot, i]), shape)
                        s = limits.hide(s, -jnp.inf, lambda i: across(of_query[i], shape), of_key)
                    plgpu.barrier_arrive(k_free.at[slot])
                    new_peak = jnp.maximum(peak, s.max(axis=1))
                    base = jnp.where(new_peak == -jnp.inf, 0.0, new_peak) if masked else new_peak
                    base = base * exponent
                    decay = jnp.exp2(peak * exponent - base)
                    p = jnp.exp2(s * exponent - across(base, shape))
                    out, total = out * across(decay, out.shape), total * decay + p.sum(axis=1)
                    p = p.astype(dtype)
                    out, total, new_peak, p = lax.optimization_barrier((out, total, new_peak, p))
                    plgpu.barrier_arrive(turn)
                    plgpu.barrier_wait(v_ready.at[slot])
                    plgpu.barrier_wait(turn)
                    held = scratch.at[warpgroup] if scratch is not None else None
                    out = matmuls.add(out, p, v_tiles.at[slot], held, lambda: wait_for_keys(index + 1))
                    plgpu.barrier_arrive(v_free.at[slot])
                    return out, new_peak, total

                state = (full((ROWS, value_width), 0.0), full((ROWS,), -jnp.inf), full((ROWS,), 0.0))
                wait_for_keys(0)
                pl.when(warpgroup == 1)(take_turn)
                state = lax.fori_loop(0, whole, lambda i, s: per_block(i, s, masked=False), state)
                state = lax.fori_loop(whole, kept, lambda i, s: per_block(i, s, masked=True), state)
                # The first hands over without the keys of its next tile, which may have to wait for the second.
                pl.when(warpgroup == 0)(lambda: plgpu.barrier_arrive(turn))
                write(row, tile, head, *state)
                pl.when(warpgroup == 0)(lambda: plgpu.barrier_wait(turn))
                plgpu.barrier_arrive(q_free.at[warpgroup])
                return done + kept

            def write(row: Any, tile: Any, head: Any, out: Any, peak: Any, total: Any) -> None:
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                some = total > 0.0
                inverse = jnp.where(some, 1.0 / total, 0.0)
                rows = pl.ds(tile * TILE + warpgroup * ROWS, ROWS)
                out = out * across(inverse, out.shape)
                if exact:
                    out_ref[row, rows, head] = out
                else:
                    out_tile.at[warpgroup][...] = out.astype(dtype)
                lse = peak * (exponent / LOG2_E) + jnp.log(total)
                lse_tile.at[warpgroup][...] = jnp.where(some, lse, -jnp.inf)
                plgpu.commit_smem()
                if not exact:
                    plgpu.copy_smem_to_gmem(out_tile.at[warpgroup], out_ref.at[row, rows, head])
                plgpu.copy_smem_to_gmem(lse_tile.at[warpgroup], lse_ref.at[row, head, rows])
                if not tiles.own_output:
                    plgpu.wait_smem_to_gmem(0, wait_read_only=True)

            schedule.for_each_tile(order_ref, per_tile, jnp.int32(0))
            plgpu.wait_smem_to_gmem(0)

        specialise(consume, produce)

    out_rows, out_dtype = (queries.shape[2], jnp.float32) if exact else (length, dtype)
    run = plgpu.kernel(
        kernel,
        out_type=(
            jax.ShapeDtypeStruct((batch, out_rows, heads, value_width), out_dtype),
            jax.ShapeDtypeStruct((batch, heads, queries.shape[2]), jnp.float32),
        ),
        scratch_types=[
            tiled((CONSUMERS, ROWS, width), dtype),
            tiled((stages, block, width), dtype),
            tiled((stages, block, value_width), dtype),
            tiled((CONSUMERS, ROWS, value_width), dtype) if tiles.own_output and not exact else None,
            plgpu.SMEM((CONSUMERS, ROWS), jnp.float32),
            plgpu.SMEM((CONSUMERS, limits.query_rows, ROWS), jnp.int32),
            plgpu.SMEM((stages, limits.key_rows, block), jnp.int32),
            tiled((CONSUMERS, ROWS, block), dtype) if matmuls.needs_scratch else None,
            plgpu.Barrier(num_barriers=CONSUMERS, num_arrivals=2),
            plgpu.Barrier(num_barriers=CONSUMERS),
            plgpu.Barrier(num_barriers=stages, num_arrivals=2),
            plgpu.Barrier(num_barriers=stages, num_arrivals=CONSUMERS),
            plgpu.Barrier(num_barriers=stages),
            plgpu.Barrier(num_barriers=stages, num_arrivals=CONSUMERS),
            plgpu.Barrier(num_arrivals=CONSUMERS),
        ],
        compiler_params=plgpu.CompilerParams(approx_math=True),
        grid=(schedule.programs,),
        grid_names=("program",),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        kernel_name="attention_forward",
        interpret=interpret,
    )
    return run(q, k, v, queries, keys, visits.blocks, visits.counts, visits.order)
