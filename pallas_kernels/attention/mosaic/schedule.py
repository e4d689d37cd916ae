"""How a persistent grid goes through the tiles: which one comes when, and how its blocks reach the consumers.

One program per multiprocessor takes every `programs`-th tile of a list that begins with the longest ones. Of its three
warpgroups the last loads and the first two compute, 64 rows of the tile each (FlashAttention-3, arXiv:2407.08608,
section 3.1): loads for the next tile are under way while this one is being finished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

CONSUMERS = 2
ROWS = 64
"""Rows of a consumer: what one wgmma computes."""
TILE = CONSUMERS * ROWS
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 24, 240
"""Together 504 of the 512 per lane of three warpgroups, in the steps of 8 that setmaxnreg takes."""
_CACHE = 24 * 2**20
"""Bytes of the other side that the tiles of neighbouring programs should share: half of a Hopper's L2."""


@dataclass(frozen=True)
class Schedule:
    """The tiles of a launch."""

    tiles: int
    """Of one head of one row."""
    rows: int
    """The batch."""
    heads: int
    heads_at_once: int
    """Heads whose tiles are gone through together, longest first; a divisor of `heads`."""
    programs: int

    @classmethod
    def of(cls, tiles: int, rows: int, heads: int, head_bytes: int, group: int, programs: int) -> Schedule:
        """As many heads at once as leave what they read in the cache; `group` of them read the same."""
        fitting = max(1, _CACHE // max(1, head_bytes)) * group
        at_once = next(n for n in range(min(heads, fitting), 0, -1) if heads % n == 0)
        return cls(tiles, rows, heads, at_once, min(programs, tiles * rows * heads))

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
    """Run `consume(warpgroup)` on the first two warpgroups and `produce()` on the last."""
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup < CONSUMERS)
    def _() -> None:
        plgpu.set_max_registers(CONSUMER_REGISTERS, action="increase")
        consume(warpgroup)

    @pl.when(warpgroup == CONSUMERS)
    def _() -> None:
        plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")
        produce()


def tiled(shape: tuple[int, ...], dtype: Any, like: int | None = None) -> Any:
    """Shared memory in the order that TMA writes and wgmma reads: tiles of 8 rows, swizzled.

    The two operands of a wgmma are swizzled alike: `like` is the width of one that this is multiplied with.
    """
    bits = jnp.dtype(dtype).itemsize * 8
    swizzle = plgpu.find_swizzle((like or shape[-1]) * bits)
    tiles: Any = plgpu.TilingTransform((8, swizzle * 8 // bits))  # pyright: ignore[reportAbstractUsage]
    order: Any = plgpu.SwizzleTransform(swizzle)  # pyright: ignore[reportAbstractUsage]
    return plgpu.SMEM(shape, dtype, transforms=(tiles, order))


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


def across(values: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """One value a row, as a block."""
    return lax.broadcast_in_dim(values, shape, [0])


def down(values: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """One value a column, as a block."""
    return lax.broadcast_in_dim(values, shape, [1])


def row_values(ref: Any) -> jax.Array:
    """A value for each row of a block, laid out as an accumulator's rows are."""
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(1))


def column_values(ref: Any) -> jax.Array:
    """A value for each column of a block, laid out as an accumulator's columns are."""
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(0))


def full(shape: tuple[int, ...], value: float) -> jax.Array:
    """A constant laid out as an accumulator, or as its rows."""
    layout = plgpu.Layout.WGMMA if len(shape) == 2 else plgpu.Layout.WGMMA.reduce(1)
    return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)
