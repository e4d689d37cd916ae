"""Parts of arrays that a Triton kernel reads and writes: neighbouring indices, masked where they may lie outside."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.pallas import pl
from pallas_kernels.pallas import triton as plgpu


@dataclass(frozen=True)
class Range:
    """Neighbouring indices of one dimension that a program takes at a time."""

    start: Any
    size: int
    end: Any
    """First index that must not be read or written."""
    full: bool
    """Whether the range is known at compile time to lie before `end`."""

    @property
    def slice(self) -> Any:
        return pl.ds(self.start, self.size)

    @property
    def indices(self) -> jax.Array:
        return self.start + jnp.arange(self.size)

    @property
    def inside(self) -> jax.Array | None:
        """Mask of the indices before `end`; None if the range is full."""
        return None if self.full else self.indices < self.end

    def load(self, ref: Any, other: float) -> jax.Array:
        """Load the range of a one-dimensional array."""
        return plgpu.load(ref.at[self.slice], mask=self.inside, other=None if self.full else other)


def both(rows: Range, columns: Range) -> jax.Array | None:
    """The mask of a tile."""
    masks = []
    if rows.inside is not None:
        masks.append(rows.inside[:, None])
    if columns.inside is not None:
        masks.append(columns.inside[None, :])
    return jnp.broadcast_to(reduce(jnp.logical_and, masks), (rows.size, columns.size)) if masks else None


def load(ref: Any, rows: Range, columns: Range, *before: Any) -> jax.Array:
    """A tile, with zeros outside; `before` are indices of the dimensions before rows and columns."""
    mask = both(rows, columns)
    return plgpu.load(ref.at[*before, rows.slice, columns.slice], mask=mask, other=None if mask is None else 0.0)
