"""The schedule of a persistent grid: the order of the tiles, and the roles of the warpgroups.

One program per multiprocessor takes every `programs`-th tile of a list that begins with the longest ones. The last of
its warpgroups loads and the others compute, 64 rows of the tile each (FlashAttention-3, arXiv:2407.08608, section 3.1):
loads for the next tile are under way while this one is being finished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.mosaic.bounds import Visits
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl

CONSUMERS = 2
"""Warpgroups that compute."""
ROWS = 64
"""Rows of a consumer: what one wgmma computes."""
TILE = CONSUMERS * ROWS
REGISTERS = 24, 240
"""Registers per thread of the producer and of a consumer: at most 512 in all, in multiples of 8, as setmaxnreg requires
(FlashAttention-3's values)."""
_CACHE = 24 * 2**20
"""Bytes of the other side that the tiles of neighbouring programs should share: half of a Hopper's L2."""


@dataclass(frozen=True)
class Schedule:
    """The tiles of a launch."""

    tiles: int
    """Number of tiles of one head of one row."""
    rows: int
    """Rows of the batch."""
    heads: int
    heads_at_once: int
    """Heads whose tiles are gone through together, longest first; a divisor of `heads`."""
    programs: int

    @classmethod
    def of(cls, tiles: int, rows: int, heads: int, head_bytes: int, group: int, programs: int) -> Schedule:
        """The schedule with as many concurrent heads as the cache has room for; `group` heads read the same keys."""
        fitting = max(1, _CACHE // max(1, head_bytes)) * group
        at_once = next(n for n in range(min(heads, fitting), 0, -1) if heads % n == 0)
        return cls(tiles, rows, heads, at_once, min(programs, tiles * rows * heads))

    def rows_of(self, tile: Any, part: Any) -> Any:
        """The rows of a consumer."""
        return pl.ds((tile * CONSUMERS + part) * ROWS, ROWS)

    def for_each_tile(self, order: Any, body: Callable[[Any, Any, Any, Any], Any], carry: Any) -> Any:
        """Run `carry = body(row, tile, head, carry)` for every tile of this program."""
        program, per_section = lax.axis_index("program"), self.tiles * self.rows * self.heads_at_once
        total = self.tiles * self.rows * self.heads
        count = lax.div(total - program + self.programs - 1, jnp.int32(self.programs))

        def step(index: Any, carry: Any) -> Any:
            work = program + index * self.programs
            section, within = lax.div(work, jnp.int32(per_section)), lax.rem(work, jnp.int32(per_section))
            entry = scalar(order, lax.div(within, jnp.int32(self.heads_at_once)))
            head = section * self.heads_at_once + lax.rem(within, jnp.int32(self.heads_at_once))
            row, tile = lax.div(entry, jnp.int32(self.tiles)), lax.rem(entry, jnp.int32(self.tiles))
            return body(row, tile, head, carry)

        return lax.fori_loop(0, count, step, carry)


def specialise(consume: Callable[[Any], None], produce: Callable[[], None]) -> None:
    """Run `consume(warpgroup)` on the first warpgroups and `produce()` on the last."""
    warpgroup = lax.axis_index("warpgroup")
    of_producer, of_consumer = REGISTERS

    @pl.when(warpgroup < CONSUMERS)
    def _() -> None:
        plgpu.set_max_registers(of_consumer, action="increase")
        consume(warpgroup)

    @pl.when(warpgroup == CONSUMERS)
    def _() -> None:
        plgpu.set_max_registers(of_producer, action="decrease")
        produce()


def for_each_block(lengths: tuple[Any, Any], step: Callable[..., Any], carry: Any) -> Any:
    """Run `carry = step(index, carry, masked=...)` for the blocks of a tile: those that are whole, then the others."""
    full, visited = lengths
    carry = lax.fori_loop(0, full, lambda index, carry: step(index, carry, masked=False), carry)
    return lax.fori_loop(full, visited, lambda index, carry: step(index, carry, masked=True), carry)


def block_rows(visits: Visits, row: Any, tile: Any, index: Any, block: int) -> Any:
    """The rows of the block that a tile visits at `index`."""
    return pl.ds(scalar(visits.blocks, row, tile, index) * block, block)


def blocks_of(visits: Visits, row: Any, tile: Any) -> tuple[Any, Any]:
    """The number of a tile's full blocks, and of its visited blocks."""
    return scalar(visits.lengths, row, tile, 0), scalar(visits.lengths, row, tile, 1)


def scalar(ref: Any, *index: Any) -> jax.Array:
    """A number in global memory.

    Inside a checked `shard_map` what is read is typed as varying, and what is computed from it in a kernel is not; so
    that loops find one type, something is computed.
    """
    return ref[index] + 0


def zero(step: Any) -> jax.Array:
    """0 for every step below 2^30, which the compiler cannot know.

    What is at an index that contains it has an address that changes with the step: the compiler computes it where it is
    used. Without, it computes the descriptors of all operands of wgmma before the loop, more than registers can hold.
    """
    return lax.shift_right_logical(jnp.int32(step), jnp.int32(30))
