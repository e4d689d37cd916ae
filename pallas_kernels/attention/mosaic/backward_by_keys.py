"""Gradients of keys and values: one tile of 128 keys at a time, over the blocks of queries that see any of it.

Everything is transposed: keys are the rows. Alone, this is the second kernel of the deterministic backward: a tile is
summed by one consumer in a fixed order, over all query heads of its KV head. Fused (FlashAttention-3,
arXiv:2407.08608, section 3.1), the gradient of the queries comes from the same five matmuls: both consumers leave
their part of the scores' gradient in shared memory, each multiplies half of the product with the keys, and TMA adds
it to what other tiles have contributed, in whatever order they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.attention.mosaic.bounds import Limits, Visits
from pallas_kernels.attention.mosaic.matmuls import product, product_over_halves, products
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
class KeyGradientTiles:
    """How the kernel is cut; static."""

    queries: int
    """Queries of a block: a multiple of 16; 64 or 128 where the gradient of the queries is wanted too."""
    stages: int
    """Blocks of queries and output gradients in shared memory."""


def key_gradients(
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
    tiles: KeyGradientTiles,
    matmuls: Any,
    programs: int,
    wanted: str = "kv",
    interpret: Any = None,
) -> dict[str, jax.Array]:
    """The gradients whose letters are in `wanted`, in float32; those of keys and values also of the padding of keys."""
    batch, _, heads, width = q.shape
    kv_heads, value_width, dtype = k.shape[2], v.shape[3], q.dtype
    group, block, stages = heads // kv_heads, tiles.queries, tiles.stages
    head_bytes = group * q.shape[1] * (width + value_width) * dtype.itemsize
    schedule = Schedule.of(keys.shape[2] // TILE, batch, kv_heads, head_bytes, 1, programs)
    shape, by_columns, overlapped = (ROWS, block), block == ROWS, "q" not in wanted
    overlapped &= width <= 192 and "k" in wanted
    parts = _parts(width) if by_columns else (width,)

    def kernel(
        q_ref, k_ref, v_ref, d_out_ref, statistics_ref, queries_ref, keys_ref, blocks_ref, counts_ref, order_ref,
        d_ref, tile_refs, barriers,
    ) -> None:  # fmt: skip
        k_tile, v_tile, q_tiles, d_out_tiles, statistics_tiles, q_limits, key_tile, scratch, ds_tiles, dq_stages = (
            tile_refs
        )
        k_ready, k_free, q_ready, q_free, d_ready, d_free, ds_ready = barriers

        def produce() -> None:
            def per_tile(row: Any, tile: Any, kv_head: Any, done: Any) -> Any:
                kept = scalar(counts_ref, row, tile, 1)
                for half in range(CONSUMERS):
                    rows, ready = pl.ds(tile * TILE + half * ROWS, ROWS), k_ready.at[half]
                    plgpu.barrier_wait(k_free.at[half])
                    plgpu.copy_gmem_to_smem(k_ref.at[row, rows, kv_head], k_tile.at[half], ready)
                    plgpu.copy_gmem_to_smem(v_ref.at[row, rows, kv_head], v_tile.at[half], ready)
                    plgpu.copy_gmem_to_smem(keys_ref.at[row, :, rows], key_tile.at[half], ready)

                def per_head(member: Any, done: Any) -> Any:
                    head = kv_head * group + member

                    def per_block(index: Any, _: None) -> None:
                        rows = pl.ds(scalar(blocks_ref, row, tile, index) * block, block)
                        slot = lax.rem(done + index, jnp.int32(stages))
                        ready = q_ready.at[slot]
                        plgpu.barrier_wait(q_free.at[slot])
                        plgpu.copy_gmem_to_smem(q_ref.at[row, rows, head], q_tiles.at[slot], ready)
                        plgpu.copy_gmem_to_smem(statistics_ref.at[row, head, :, rows], statistics_tiles.at[slot], ready)
                        plgpu.copy_gmem_to_smem(queries_ref.at[row, :, rows], q_limits.at[slot], ready)
                        plgpu.barrier_wait(d_free.at[slot])
                        plgpu.copy_gmem_to_smem(d_out_ref.at[row, rows, head], d_out_tiles.at[slot], d_ready.at[slot])

                    lax.fori_loop(0, kept, per_block, None)
                    return done + kept

                return lax.fori_loop(0, group, per_head, done)

            schedule.for_each_tile(order_ref, per_tile, jnp.int32(0))
            for half in range(CONSUMERS):
                plgpu.barrier_wait(k_free.at[half])
            for slot in range(stages):
                plgpu.barrier_wait(q_free.at[slot])
                plgpu.barrier_wait(d_free.at[slot])

        def consume(warpgroup: Any) -> None:
            def free_keys() -> None:
                """Fused, both consumers read both halves of the tile, so each half is free when both are done."""
                for half in range(CONSUMERS) if "q" in wanted else (warpgroup,):
                    plgpu.barrier_arrive(k_free.at[half])

            for slot in range(stages):
                plgpu.barrier_arrive(q_free.at[slot])
                plgpu.barrier_arrive(d_free.at[slot])
            free_keys()
            held = scratch.at[warpgroup] if scratch is not None else None

            def per_tile(row: Any, tile: Any, kv_head: Any, done: Any) -> Any:
                whole, kept = scalar(counts_ref, row, tile, 0), scalar(counts_ref, row, tile, 1)
                plgpu.barrier_wait(k_ready.at[warpgroup])
                of_key = tuple(row_values(key_tile.at[warpgroup, i]) for i in range(limits.key_rows))

                def per_head(member: Any, carry: tuple) -> tuple:
                    done, sums = carry

                    def per_block(index: Any, sums: dict[str, jax.Array], *, masked: bool) -> dict[str, jax.Array]:
                        slot = lax.rem(done + index, jnp.int32(stages))
                        nothing = zero(done + index)
                        own = warpgroup + nothing
                        plgpu.barrier_wait(q_ready.at[slot])
                        q_block, d_block = q_tiles.at[slot], d_out_tiles.at[slot]
                        of_scores = (k_tile.at[own], q_block.transpose((1, 0)))
                        of_dp = (v_tile.at[own], d_block.transpose((1, 0)))
                        wait_for_d_out = lambda: plgpu.barrier_wait(d_ready.at[slot])
                        dp = None
                        if overlapped and not masked:
                            raw, dp = products(of_scores, of_dp, wait_for_d_out)
                        else:  # limits and query gradients need the registers that the second product would hold
                            raw = product(*of_scores, wait_for_d_out)
                        # Column by column values are many registers: each is loaded when the one before is used up.
                        lse = column_values(statistics_tiles.at[slot, 0])
                        p = scores.probabilities(raw, down(lse, shape))
                        if masked:
                            of_query = lambda i: down(column_values(q_limits.at[slot, i]), shape)
                            p = limits.hide(p, 0.0, of_query, lambda i: across(of_key[i], shape))
                        weight = scores.weight(raw, p)
                        if "v" in wanted:
                            sums = sums | {"v": matmuls.add(sums["v"], p.astype(dtype), d_block, held)}
                        if "k" in wanted:
                            inner = down(column_values(statistics_tiles.at[slot, 1]), shape)
                            slope = matmuls.add_shared(-inner, *of_dp) if dp is None else dp - inner
                        plgpu.barrier_arrive(d_free.at[slot])
                        if "k" in wanted:
                            ds = (weight * slope).astype(dtype)
                            if "q" in wanted:
                                # Two buffers: whoever is through this step's barrier has read what the last one left.
                                ds_tile = ds_tiles.at[lax.rem(done + index, jnp.int32(2))]
                                ds_tile.at[warpgroup][...] = ds
                                plgpu.commit_smem()
                                plgpu.barrier_arrive(ds_ready)
                                sums = sums | {"k": matmuls.add(sums["k"], ds, q_block, held)}
                                plgpu.barrier_wait(ds_ready)
                            else:
                                sums = sums | {"k": matmuls.add(sums["k"], ds, q_block, held)}
                        plgpu.barrier_arrive(q_free.at[slot])
                        if "q" in wanted:
                            add_query_gradient(ds_tile, scalar(blocks_ref, row, tile, index) * block, done + index)
                        return sums

                    def add_query_gradient(ds_tile: Any, start: Any, step: Any) -> None:
                        """This consumer's part, by columns or by rows, of the product of both consumers' `ds`."""
                        nothing = zero(step)

                        def add(some: Any, columns: Any, stages: Any) -> None:
                            pairs = tuple(
                                (ds_tile.at[half, :, some].transpose((1, 0)), k_tile.at[half + nothing, :, columns])
                                for half in range(CONSUMERS)
                            )
                            target = d_ref["q"].at[row, pl.ds(start + some.start, some.size), head, columns]
                            matmuls.add_to_global(
                                target, product_over_halves(pairs) * scores.scale, stages.at[warpgroup]
                            )

                        if not by_columns:
                            add(pl.ds(warpgroup * ROWS, ROWS), pl.ds(0, width), *dq_stages)
                        elif len(parts) == 1:
                            add(pl.ds(0, ROWS), pl.ds(warpgroup * parts[0], parts[0]), *dq_stages)
                        else:  # the wider part is the one's in one step and the other's in the next
                            turn, starts = lax.rem(warpgroup + step, jnp.int32(CONSUMERS)), (0, parts[0])
                            for n, (first, size) in enumerate(zip(starts, parts, strict=True)):
                                pl.when(turn == n)(partial(add, pl.ds(0, ROWS), pl.ds(first, size), dq_stages[n]))

                    head = kv_head * group + member
                    sums = lax.fori_loop(0, whole, lambda i, s: per_block(i, s, masked=False), sums)
                    sums = lax.fori_loop(whole, kept, lambda i, s: per_block(i, s, masked=True), sums)
                    return done + kept, sums

                widths = {"k": width, "v": value_width}
                zeros = {name: full((ROWS, widths[name]), 0.0) for name in widths if name in wanted}
                done, sums = lax.fori_loop(0, group, per_head, (done, zeros))
                free_keys()
                rows = pl.ds(tile * TILE + warpgroup * ROWS, ROWS)
                for name, total in sums.items():
                    d_ref[name][row, rows, kv_head] = total * scores.scale if name == "k" else total
                return done

            schedule.for_each_tile(order_ref, per_tile, jnp.int32(0))
            if "q" in wanted:
                plgpu.wait_smem_to_gmem(0)

        specialise(consume, produce)

    like_keys = (batch, keys.shape[2], kv_heads)
    results = {"k": (*like_keys, width), "v": (*like_keys, value_width)}
    names = [name for name in results if name in wanted]
    sums = [jax.new_ref(jnp.zeros((batch, queries.shape[2], heads, width), jnp.float32))] if "q" in wanted else []
    letters = ["q"] * len(sums) + names

    def entry(*refs: Any) -> None:
        *inputs_and_outputs, tile_refs, barriers = refs
        outputs = dict(zip(letters, inputs_and_outputs[10:], strict=True))
        kernel(*inputs_and_outputs[:10], outputs, tile_refs, barriers)  # pyright: ignore[reportCallIssue]

    run = plgpu.kernel(
        entry,
        out_type=[jax.ShapeDtypeStruct(results[name], jnp.float32) for name in names],
        scratch_types=[
            (
                tiled((CONSUMERS, ROWS, width), dtype),
                tiled((CONSUMERS, ROWS, value_width), dtype),
                tiled((stages, block, width), dtype),
                tiled((stages, block, value_width), dtype),
                plgpu.SMEM((stages, 2, block), jnp.float32),
                plgpu.SMEM((stages, limits.query_rows, block), jnp.int32),
                plgpu.SMEM((CONSUMERS, limits.key_rows, ROWS), jnp.int32),
                tiled((CONSUMERS, ROWS, block), dtype) if matmuls.needs_scratch else None,
                tiled((2, CONSUMERS, ROWS, block), dtype, like=width) if sums else None,
                tuple(tiled((CONSUMERS, ROWS, part), jnp.float32) for part in parts) if sums else None,
            ),
            (
                plgpu.Barrier(num_barriers=CONSUMERS, num_arrivals=3),
                plgpu.Barrier(num_barriers=CONSUMERS, num_arrivals=CONSUMERS if sums else 1),
                plgpu.Barrier(num_barriers=stages, num_arrivals=3),
                plgpu.Barrier(num_barriers=stages, num_arrivals=CONSUMERS),
                plgpu.Barrier(num_barriers=stages),
                plgpu.Barrier(num_barriers=stages, num_arrivals=CONSUMERS),
                plgpu.Barrier(num_arrivals=CONSUMERS) if sums else None,
            ),
        ],
        compiler_params=plgpu.CompilerParams(approx_math=True),
        grid=(schedule.programs,),
        grid_names=("program",),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        kernel_name="attention_key_gradients",
        interpret=interpret,
    )
    outputs = run(q, k, v, d_out, statistics, queries, keys, visits.blocks, visits.counts, visits.order, *sums)
    return dict(zip(names, outputs, strict=True)) | ({"q": jax.freeze(sums[0])} if sums else {})


def _parts(width: int) -> tuple[int, ...]:
    """Columns of each consumer's part of the queries' gradient, whole tiles of 32: one number if they are the same."""
    first = -(-width // 64) * 32
    return (first,) if 2 * first == width else (first, width - first)
