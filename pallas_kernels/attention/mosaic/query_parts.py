"""The gradient of the queries in the kernel of the keys: what its two consumers exchange, and who does which part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.attention.mosaic.matmuls import product_over_halves
from pallas_kernels.attention.mosaic.memory import tiled
from pallas_kernels.attention.mosaic.schedule import CONSUMERS, ROWS, TILE, zero
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl


class Exchange(NamedTuple):
    """Buffers in shared memory."""

    ds: Any
    """The scores' gradient of two steps, of each a half by each consumer."""
    ready: Any
    """The barrier of a step: both halves are there."""
    dq: Any
    """Each consumer's part of a block's gradient, before it is stored."""

    def share(self, step: Any, warpgroup: Any, ds: jax.Array) -> None:
        """Leave `ds` where the other consumer finds it.

        Two buffers are enough: whoever has passed the barrier of the last step has read what the one before left.
        """
        self.ds.at[lax.rem(step, jnp.int32(2)), warpgroup][...] = ds
        plgpu.commit_smem()
        plgpu.barrier_arrive(self.ready)

    def wait(self) -> None:
        """Wait for the other consumer's half."""
        plgpu.barrier_wait(self.ready)


@dataclass(frozen=True)
class QueryGradientParts:
    """How a block's gradient, the product of both halves of `ds` and of the keys, is divided; static."""

    width: int
    queries: int
    """Queries of a block: 128 (a consumer has half of the rows), 64 (some columns), or 32 (transposed columns)."""
    scale: float
    matmuls: Any

    @property
    def transposed(self) -> bool:
        """The gradient's columns are the rows of the product, because a wgmma has no fewer than 64."""
        return self.queries < ROWS

    @property
    def columns(self) -> tuple[int, ...]:
        """Columns of each consumer: all if it has half of the rows, otherwise half of them, rounded to tiles.

        The last where whole tiles, of 32 columns of float32 or of 64 rows, cannot be halved: at widths 96 and 192.
        """
        if self.queries == TILE:
            return (self.width,)
        tile = ROWS if self.transposed else 32
        wider = -(-self.width // (2 * tile)) * tile
        return (wider,) if 2 * wider == self.width else (wider, self.width - wider)

    def memory(self, dtype: Any) -> Exchange:
        """The types of what is exchanged."""
        shape = lambda columns: (columns, self.queries) if self.transposed else (ROWS, columns)
        return Exchange(
            ds=tiled((2, CONSUMERS, ROWS, self.queries), dtype, like=self.queries if self.transposed else self.width),
            ready=plgpu.Barrier(num_arrivals=CONSUMERS),
            dq=[tiled((CONSUMERS, *shape(columns)), jnp.float32) for columns in self.columns],
        )

    def zeros(self, zero: jax.Array, batch: int, queries: int, heads: int) -> jax.Array:
        """The zeros to which the parts are added."""
        shape = (batch, heads, self.width, queries) if self.transposed else (batch, queries, heads, self.width)
        return jnp.broadcast_to(zero, shape)

    def joined(self, dq: jax.Array) -> Float[Array, "batch queries heads width"]:
        """The gradient in the queries' layout, from the sum of the parts."""
        return dq.transpose((0, 3, 1, 2)) if self.transposed else dq

    def target(self, dq: Any, row: Any, head: Any, start: Any) -> Callable[[Any, Any], Any]:
        """A function from first row and columns to their slice of a block of queries in global memory."""
        if self.transposed:
            return lambda _, columns: dq.at[row, head, columns, pl.ds(start, self.queries)]
        return lambda first, columns: dq.at[row, pl.ds(start + first, ROWS), head, columns]

    def add(self, memory: Exchange, step: Any, warpgroup: Any, keys: Any, target: Callable[[Any, Any], Any]) -> None:
        """Add this consumer's part, from what is exchanged and both halves of the keys, to what is at `target`."""
        ds = memory.ds.at[lax.rem(step, jnp.int32(2))]

        def add_part(first: Any, columns: Any, stages: Any) -> None:
            halves = tuple(keys.at[half + zero(step), :, columns] for half in range(CONSUMERS))
            if self.transposed:
                pairs = tuple((half.transpose((1, 0)), ds.at[n]) for n, half in enumerate(halves))
            else:
                rows = pl.ds(first, ROWS)
                pairs = tuple((ds.at[n, :, rows].transpose((1, 0)), half) for n, half in enumerate(halves))
            dq = product_over_halves(pairs) * self.scale
            self.matmuls.add_to_global(target(first, columns), dq, stages.at[warpgroup])

        self._of_part(memory, step, warpgroup, add_part)

    def _of_part(self, memory: Exchange, step: Any, warpgroup: Any, run: Callable[[Any, Any, Any], None]) -> None:
        """`run` of the first row, the columns and the memory of a consumer's part."""
        parts = self.columns
        if parts == (self.width,):
            run(warpgroup * ROWS, pl.ds(0, self.width), *memory.dq)
        elif len(parts) == 1:
            run(0, pl.ds(warpgroup * parts[0], parts[0]), *memory.dq)
        else:
            turn = lax.rem(warpgroup + step, jnp.int32(CONSUMERS))
            for n, (first, columns) in enumerate(zip((0, parts[0]), parts, strict=True)):
                pl.when(turn == n)(partial(run, 0, pl.ds(first, columns), memory.dq[n]))
