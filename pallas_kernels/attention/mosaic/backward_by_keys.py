"""Gradients of keys and values: one tile of 128 keys at a time, over the blocks of queries that see any of it.

Everything is transposed: keys are the rows. Alone, this is the second kernel of the deterministic backward: a tile is
summed by one consumer in a fixed order, over all query heads of its KV head. Fused (FlashAttention-3,
arXiv:2407.08608, section 3.1), the gradient of the queries comes from the same five matmuls: both consumers leave
their part of the scores' gradient in shared memory, each multiplies a part of the product with the keys, and TMA adds
it to what other tiles have contributed, in whatever order they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.mosaic.kernel import Arrays, Kernel, Options
from pallas_kernels.attention.mosaic.loading import load_by_keys
from pallas_kernels.attention.mosaic.matmuls import Add, product, products
from pallas_kernels.attention.mosaic.memory import Loaded, tiled
from pallas_kernels.attention.mosaic.query_parts import Exchange, QueryGradientParts
from pallas_kernels.attention.mosaic.registers import across, column_values, down, full, row_values
from pallas_kernels.attention.mosaic.schedule import (
    CONSUMERS,
    ROWS,
    TILE,
    Schedule,
    block_rows,
    blocks_of,
    for_each_block,
    zero,
)
from pallas_kernels.pallas import mosaic_gpu as plgpu


@dataclass(frozen=True)
class KeyGradientTiles:
    """Tile sizes of the kernel; static."""

    queries: int
    """Queries of a block: 32, 64 or 128."""
    stages: int
    """Blocks of queries and output gradients in shared memory."""
    together: Literal["all", "whole", "none"] = "whole"
    """The blocks whose scores and dP are issued together, so that probabilities are computed while dP is: all, or those
    that the mask does not cut, whose limits need no registers."""


def key_gradients(arrays: Arrays, tiles: KeyGradientTiles, options: Options, wanted: str) -> dict[str, jax.Array]:
    """The gradients whose letters are in `wanted`, in float32; those of keys and values also of the padding of keys."""
    (batch, queries, heads, width), kv_heads = arrays.q.shape, arrays.k.shape[2]
    value_width, padded = arrays.v.shape[3], arrays.keys.shape[2]
    limits, scores, matmuls, programs, interpret = options
    group, dtype = heads // kv_heads, arrays.q.dtype
    head_bytes = group * queries * (width + value_width) * dtype.itemsize
    schedule = Schedule.of(padded // TILE, batch, kv_heads, head_bytes, 1, programs)
    widths = {letter: wide for letter, wide in (("k", width), ("v", value_width)) if letter in wanted}
    fused = QueryGradientParts(width, tiles.queries, scores.scale, matmuls) if "q" in wanted else None
    body = _KeyGradients(schedule, group, tiles, limits, scores, matmuls, width, dtype, fused, widths)
    results = [jax.ShapeDtypeStruct((batch, padded, kv_heads, wide), jnp.float32) for wide in widths.values()]
    # Zeros that no other call shares: XLA would make them once, and copy them for each.
    zero, d_out = lax.optimization_barrier((jnp.float32(0), arrays.d_out))
    sums = [jax.new_ref(fused.zeros(zero, batch, arrays.queries.shape[2], heads))] if fused else []
    outputs = body.launch(arrays._replace(d_out=d_out), results, "key_gradients", interpret, *sums)
    return dict(zip(widths, outputs, strict=True)) | ({"q": fused.joined(jax.freeze(sums[0]))} if fused else {})


class _Memory(NamedTuple):
    """In shared memory."""

    keys: Loaded
    """A half for each consumer: keys, values, tokens."""
    queries: Loaded
    """Blocks: queries, statistics, limits."""
    d_out: Loaded
    scratch: Any
    fused: Exchange | None


class _Position(NamedTuple):
    """The position of a consumer: its tile and rows."""

    warpgroup: Any
    row: Any
    tile: Any
    head: Any
    done: Any
    """Blocks before those of this head."""
    tokens: tuple[Any, ...]
    """Token arrays of the consumer's keys."""


@dataclass(frozen=True)
class _KeyGradients(Kernel):
    """The kernel for gradients of keys and values."""

    tiles: KeyGradientTiles
    fused: QueryGradientParts | None
    """The parts of the queries' gradient, if this kernel computes it too."""
    widths: dict[str, int]
    """Widths of the requested gradients, by letter: `k`, `v`."""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the scores of a step."""
        return ROWS, self.tiles.queries

    def memory(self, value_width: int) -> _Memory:
        block, stages, width, dtype = self.tiles.queries, self.tiles.stages, self.width, self.dtype
        of_query, of_key = ((2, jnp.float32), (self.limits.query_rows, jnp.int32)), (self.limits.key_rows, jnp.int32)
        readers, like = CONSUMERS if self.fused else 1, block if block < ROWS else None
        return _Memory(
            keys=Loaded.of(CONSUMERS, readers, ROWS, (width, value_width), dtype, of_key, like=like),
            queries=Loaded.of(stages, CONSUMERS, block, (width,), dtype, *of_query, like=like),
            d_out=Loaded.of(stages, CONSUMERS, block, (value_width,), dtype, like=like),
            scratch=tiled((len(self.widths), CONSUMERS, ROWS, block), dtype) if self.matmuls.needs_scratch else None,
            fused=self.fused.memory(dtype) if self.fused else None,
        )

    def produce(self, arrays: Arrays, memory: _Memory) -> None:
        load_by_keys(self.schedule, arrays, memory, group=self.group, block=self.tiles.queries)

    def consume(self, arrays: Arrays, memory: _Memory, warpgroup: Any) -> None:
        memory.queries.release_all()
        memory.d_out.release_all()
        self.release_keys(memory, warpgroup)
        differentiate = partial(self.differentiate, arrays, memory, warpgroup)
        self.schedule.for_each_tile(arrays.visits.order, differentiate, jnp.int32(0))
        if self.fused:
            plgpu.wait_smem_to_gmem(0)

    def release_keys(self, memory: _Memory, warpgroup: Any) -> None:
        """Fused, both consumers read both halves of the tile, so each half is free when both are done."""
        if self.fused:
            memory.keys.release_all()
        else:
            memory.keys.release(warpgroup)

    def differentiate(
        self, arrays: Arrays, memory: _Memory, warpgroup: Any, row: Any, tile: Any, kv_head: Any, done: Any
    ) -> Any:
        """Compute this consumer's half of a tile, over all query heads of its KV head."""
        blocks = blocks_of(arrays.visits, row, tile)
        memory.keys.wait(warpgroup)
        _, _, tokens = memory.keys.at(warpgroup)
        of_key = tuple(row_values(tokens.at[i]) for i in range(self.limits.key_rows))

        def per_head(member: Any, carry: tuple) -> tuple:
            done, sums = carry
            at = _Position(warpgroup, row, tile, kv_head * self.group + member, done, of_key)
            return done + blocks[1], for_each_block(blocks, partial(self.step, arrays, memory, at), sums)

        zeros = {name: full((ROWS, wide), 0.0) for name, wide in self.widths.items()}
        done, sums = lax.fori_loop(0, self.group, per_head, (done, zeros))
        self.release_keys(memory, warpgroup)
        for result, (name, total) in zip(arrays.results[1 if self.fused else 0 :], sums.items(), strict=True):
            scaled = total * self.scores.scale if name == "k" else total
            result[row, self.schedule.rows_of(tile, warpgroup), kv_head] = scaled
        return done

    def step(
        self, arrays: Arrays, memory: _Memory, at: _Position, index: Any, sums: dict[str, jax.Array], *, masked: bool
    ) -> dict[str, jax.Array]:
        """A block of queries: probabilities, the gradient of the scores, and what they make of dO, Q and K.

        The product with dO is under way while the gradient of the scores is made, unless registers hold one product of
        blocks alone, and that with Q until the end.
        """
        step = at.done + index
        slot, letters = memory.queries.slot(step), tuple(self.widths)
        (q, statistics, limits), (d_out,) = memory.queries.at(slot), memory.d_out.at(slot)
        memory.queries.wait(slot)
        k, v, _ = memory.keys.at(at.warpgroup + zero(step))
        of_scores, of_dp = (k, q.transpose((1, 0))), (v, d_out.transpose((1, 0)))
        wait_for_d_out, together = lambda: memory.d_out.wait(slot), self.together(masked)
        dv_over = "k" in letters and ("v" not in letters or self.tiles.together == "none")  # when dP is
        release_d_out = lambda now: memory.d_out.release(slot) if now else None

        def multiply(add: Add) -> None:
            def weights(raw: jax.Array) -> jax.Array:
                p = self.probabilities(raw, statistics, limits, at, masked)
                weight = self.scores.weight(raw, p)
                if "v" in letters:
                    add("v", p.astype(self.dtype), d_out)
                return weight

            if together:
                weight, dp = products(of_scores, of_dp, wait_for_d_out, weights, behind=letters.count("v"))
            else:
                weight, dp = weights(product(*of_scores, wait_for_d_out)), None
            if "k" not in letters:
                return
            if "v" in letters and dv_over:
                plgpu.wgmma_wait(0)  # the registers of p are needed for dP
            delta = down(column_values(statistics.at[1]), self.shape)
            slope = self.matmuls.add_shared(-delta, *of_dp) if dp is None else dp - delta
            release_d_out(dv_over)
            ds = (weight * slope).astype(self.dtype)
            if memory.fused is not None:
                memory.fused.share(step, at.warpgroup, ds)
            add("k", ds, q)
            if self.fused is not None and memory.fused is not None:
                start = block_rows(arrays.visits, at.row, at.tile, index, self.tiles.queries).start
                memory.fused.wait()
                target = self.fused.target(arrays.results[0], at.row, at.head, start)
                self.fused.add(memory.fused, step, at.warpgroup, memory.keys.memory[0], target)

        operands = () if memory.scratch is None else [memory.scratch.at[n, at.warpgroup] for n in range(len(letters))]
        sums = self.matmuls.add_all(sums, multiply, operands)
        release_d_out(not dv_over)
        memory.queries.release(slot)
        return sums

    def together(self, masked: bool) -> bool:
        """Whether registers hold both scores and dP of a block, which the mask cuts or not."""
        return "k" in self.widths and self.tiles.together in (("all",) if masked else ("all", "whole"))

    def probabilities(self, raw: jax.Array, statistics: Any, limits: Any, at: _Position, masked: bool) -> jax.Array:
        """Values of columns are many registers: each row of them is loaded when the one before is used up."""
        p = self.scores.probabilities(raw, down(column_values(statistics.at[0]), self.shape))
        if masked:
            of_query = lambda i: down(column_values(limits.at[i]), self.shape)
            p = self.limits.hide(p, 0.0, of_query, lambda i: across(at.tokens[i], self.shape))
        return p
