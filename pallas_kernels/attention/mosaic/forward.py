"""Forward: one tile of 64 queries for each consumer at a time, over the blocks of keys that its mask keeps.

The online softmax in base 2, with the two consumers taking turns on the tensor cores: while one multiplies, the other
exponentiates (the ping-pong schedule of FlashAttention-3, arXiv:2407.08608, section 3.1). `overlapped` has the form in
which a consumer also exponentiates beside a product of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.attention.mosaic.kernel import Arrays, Kernel, Options
from pallas_kernels.attention.mosaic.loading import load_by_queries
from pallas_kernels.attention.mosaic.matmuls import product
from pallas_kernels.attention.mosaic.memory import Loaded, tiled
from pallas_kernels.attention.mosaic.overlapped import first_turn, last_turn, overlapped_blocks
from pallas_kernels.attention.mosaic.registers import across, column_values, down, full, row_values
from pallas_kernels.attention.mosaic.schedule import CONSUMERS, ROWS, blocks_of, for_each_block, zero
from pallas_kernels.attention.mosaic.scores import LOG2_E
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl


@dataclass(frozen=True)
class ForwardTiles:
    """Tile sizes of the kernel; static."""

    keys: int
    """Keys of a block: a multiple of 16."""
    stages: int
    """Blocks of keys and values in shared memory."""
    overlapped: Literal["all", "whole", "none"] = "all"
    """The blocks whose scores a consumer exponentiates while it multiplies the block before with its values: all, or
    those that the mask does not cut, whose tokens need no registers. With "none" one product is in flight."""
    separate_output: bool = True
    """The output has shared memory of its own, so that queries arrive while it leaves; else it takes theirs."""


def forward_kernel(
    arrays: Arrays, tiles: ForwardTiles, options: Options, *, exact: bool
) -> tuple[Float[Array, "batch some_queries heads value_width"], Float[Array, "batch heads padded_queries"]]:
    """Output, and log-sum-exp in float32, the latter also of the padding of queries.

    The output leaves by TMA in q's dtype; with `exact` from the registers in float32, then with the padding too.
    """
    (batch, length, heads, _), padded = arrays.q.shape, arrays.queries.shape[2]
    body = _Forward.by_queries(arrays, tiles, options, exact=exact)
    rows, dtype = (padded, jnp.float32) if exact else (length, body.dtype)
    results = (
        jax.ShapeDtypeStruct((batch, rows, heads, arrays.v.shape[3]), dtype),
        jax.ShapeDtypeStruct((batch, heads, padded), jnp.float32),
    )
    return body.launch(arrays, results, "forward", options.interpret)


class _Memory(NamedTuple):
    """Buffers in shared memory."""

    queries: Loaded
    """A part for each consumer: queries, their limits."""
    keys: Loaded
    """Blocks: keys, their tokens."""
    values: Loaded
    out: Any
    lse: Any
    scratch: Any
    turn: Any
    """Barrier at which the warpgroups take turns at the tensor cores."""


class _Tile(NamedTuple):
    """A consumer's state for its current tile."""

    warpgroup: Any
    done: Any
    """Blocks of the tiles before."""
    visited: Any
    limits: tuple[Any, ...]
    """Limits of the consumer's queries."""


@dataclass(frozen=True)
class _Forward(Kernel):
    """The forward kernel."""

    tiles: ForwardTiles
    exact: bool

    @property
    def overlapped(self) -> bool:
        """Whether two products are in flight."""
        return self.tiles.overlapped != "none"

    def memory(self, value_width: int) -> _Memory:
        block, stages, width, dtype = self.tiles.keys, self.tiles.stages, self.width, self.dtype
        separate_output = self.tiles.separate_output and not self.exact
        return _Memory(
            queries=Loaded.of(CONSUMERS, 1, ROWS, (width,), dtype, (self.limits.query_rows, jnp.int32)),
            keys=Loaded.of(stages, CONSUMERS, block, (width,), dtype, (self.limits.key_rows, jnp.int32)),
            values=Loaded.of(stages, CONSUMERS, block, (value_width,), dtype),
            out=tiled((CONSUMERS, ROWS, value_width), dtype) if separate_output else None,
            lse=plgpu.SMEM((CONSUMERS, ROWS), jnp.float32),
            scratch=tiled((CONSUMERS, ROWS, block), dtype) if self.matmuls.needs_scratch else None,
            turn=plgpu.Barrier(num_barriers=CONSUMERS) if self.overlapped else plgpu.Barrier(num_arrivals=CONSUMERS),
        )

    def produce(self, arrays: Arrays, memory: _Memory) -> None:
        load_by_queries(
            self.schedule, arrays, memory, group=self.group, block=self.tiles.keys,
            of_queries=lambda row, head, rows: (arrays.q.at[row, rows, head], arrays.queries.at[row, :, rows]),
        )  # fmt: skip

    def consume(self, arrays: Arrays, memory: _Memory, warpgroup: Any) -> None:
        memory.keys.release_all()
        memory.values.release_all()
        memory.queries.release(warpgroup)
        attend = partial(self.attend, arrays, memory, warpgroup)
        if self.overlapped:
            first_turn(memory.turn, warpgroup)
        self.schedule.for_each_tile(arrays.visits.order, attend, jnp.int32(0))
        if self.overlapped:
            last_turn(memory.turn, warpgroup)
        plgpu.wait_smem_to_gmem(0)

    def attend(self, arrays: Arrays, memory: _Memory, warpgroup: Any, row: Any, tile: Any, head: Any, done: Any) -> Any:
        """Compute this consumer's part of a tile."""
        full_blocks, visited = blocks_of(arrays.visits, row, tile)
        memory.queries.wait(warpgroup)
        _, limits = memory.queries.at(warpgroup)
        at = _Tile(warpgroup, done, visited, tuple(row_values(limits.at[i]) for i in range(self.limits.query_rows)))
        where = row, self.schedule.rows_of(tile, warpgroup), head
        state = (full((ROWS, arrays.v.shape[3]), 0.0), full((ROWS,), -jnp.inf), full((ROWS,), 0.0))
        if self.overlapped:
            state = overlapped_blocks(self, memory, at, full_blocks, state)
            self.write(arrays, memory, warpgroup, where, *state)
            memory.queries.release(warpgroup)
            return done + visited
        _wait_for_keys(memory, at, 0)
        pl.when(warpgroup == 1)(lambda: _take_turn(memory))
        state = for_each_block((full_blocks, visited), partial(self.step, memory, at), state)
        # The first hands over without the keys of its next tile, which may have to wait for the second.
        pl.when(warpgroup == 0)(lambda: plgpu.barrier_arrive(memory.turn))
        self.write(arrays, memory, warpgroup, where, *state)
        pl.when(warpgroup == 0)(lambda: plgpu.barrier_wait(memory.turn))
        memory.queries.release(warpgroup)
        return done + visited

    def step(self, memory: _Memory, at: _Tile, index: Any, state: tuple, *, masked: bool) -> tuple:
        """A block of keys: scores, their softmax so far, and what it makes of the values."""
        out, peak, total = state
        slot = memory.keys.slot(at.done + index)
        (q, _), (k, tokens), (v,) = (
            memory.queries.at(at.warpgroup + zero(at.done + index)), memory.keys.at(slot), memory.values.at(slot)
        )  # fmt: skip
        s = self.seen(product(q, k.transpose((1, 0)), lambda: _take_turn(memory)), at.limits, tokens, masked)
        self.matmuls.order_reads()
        memory.keys.release(slot)
        p, decay, new_peak = self.soften(s, peak, masked)
        out, total = out * across(decay, out.shape), total * decay + p.sum(axis=1)
        out, total, new_peak, p = lax.optimization_barrier((out, total, new_peak, p.astype(self.dtype)))
        plgpu.barrier_arrive(memory.turn)
        memory.values.wait(slot)
        plgpu.barrier_wait(memory.turn)
        scratch = memory.scratch.at[at.warpgroup] if memory.scratch is not None else None
        out = self.matmuls.add(out, p, v, scratch, lambda: _wait_for_keys(memory, at, index + 1))
        memory.values.release(slot)
        return out, new_peak, total

    def seen(self, raw: jax.Array, limits: tuple[Any, ...], tokens: Any, masked: bool) -> jax.Array:
        """Scores of a block, of pairs that the mask does not keep -inf."""
        s, of_key = self.scores.capped(raw), lambda i: down(column_values(tokens.at[i]), raw.shape)
        return self.limits.hide(s, -jnp.inf, lambda i: across(limits[i], raw.shape), of_key) if masked else s

    def soften(self, s: jax.Array, peak: jax.Array, masked: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Weights relative to the new peak of each row, by what the sums before it decay, and that peak."""
        exponent = self.scores.exponent
        new_peak = jnp.maximum(peak, s.max(axis=1))
        base = jnp.where(new_peak == -jnp.inf, 0.0, new_peak) if masked else new_peak
        base = base * exponent
        decay = jnp.exp2(peak * exponent - base)
        return jnp.exp2(s * exponent - across(base, s.shape)), decay, new_peak

    def write(
        self, arrays: Arrays, memory: _Memory, warpgroup: Any, where: tuple, out: Any, peak: Any, total: Any
    ) -> None:
        """Output and log-sum-exp of this consumer's part of a tile; `where` is row, rows and head."""
        (row, rows, head), (q, _), (out_ref, lse_ref) = where, memory.queries.at(warpgroup), arrays.results
        out_tile = memory.out.at[warpgroup] if memory.out is not None else q
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        some = total > 0.0
        inverse = jnp.where(some, 1.0 / total, 0.0)
        out = out * across(inverse, out.shape)
        if self.exact:
            out_ref[row, rows, head] = out
        else:
            out_tile[...] = out.astype(self.dtype)
        lse = peak * (self.scores.exponent / LOG2_E) + jnp.log(total)
        memory.lse.at[warpgroup][...] = jnp.where(some, lse, -jnp.inf)
        plgpu.commit_smem()
        if not self.exact:
            plgpu.copy_smem_to_gmem(out_tile, out_ref.at[row, rows, head])
        plgpu.copy_smem_to_gmem(memory.lse.at[warpgroup], lse_ref.at[row, head, rows])
        if not self.tiles.separate_output:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)


def _take_turn(memory: _Memory) -> None:
    plgpu.barrier_arrive(memory.turn)
    plgpu.barrier_wait(memory.turn)


def _wait_for_keys(memory: _Memory, at: _Tile, index: Any) -> None:
    """Wait for the keys of the block at `index`, if there is one."""
    pl.when(index < at.visited)(lambda: memory.keys.wait(memory.keys.slot(at.done + index)))
