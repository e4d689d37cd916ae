"""The blocks that a tile visits as an interval of neighbours, where the order of tokens makes them one.

Where indices grow by one from token to token, and documents follow each other, the blocks of keys that a tile of
queries sees are neighbours, and so are those among them of which the mask keeps every pair; the same holds for
tiles of keys.
Four numbers then state what a list would, with one for each block of the other side. They are right for any order of
tokens, for what lies between the first and the last visited block is visited too, under the mask; how many blocks a
window leaves a tile (`most_visited`) is right for neighbours alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from pallas_kernels.masks import Mask


class Intervals(NamedTuple):
    """The blocks of the other side that each tile visits: full ones first, then the partial ones around them."""

    first: Int[Array, "batch tiles"]
    """The first block that is visited."""
    inner: Int[Array, "batch tiles"]
    """The first full block, in which every pair is visible; `first` if there is none."""
    full: Int[Array, "batch tiles"]
    """Number of consecutive full blocks."""
    visited: Int[Array, "batch tiles"]
    """Number of visited blocks."""

    @classmethod
    def of(cls, visited: Bool[Array, "batch tiles blocks"], full: Bool[Array, "batch tiles blocks"]) -> Intervals:
        """Intervals from masks of the visited and of the full blocks."""
        others = visited.shape[-1]
        index = jnp.arange(others, dtype=jnp.int32)
        first = jnp.where(visited, index, others).min(-1)
        last = jnp.where(visited, index, -1).max(-1)
        inner = jnp.where(full, index, others).min(-1)
        beyond = jnp.where(~full & (index >= inner[..., None]), index, others).min(-1)
        wholes = beyond - inner
        return cls(first, jnp.where(wholes > 0, inner, first), wholes, jnp.maximum(last + 1 - first, 0))

    def blocks(self, most: int) -> Int[Array, "batch tiles {most}"]:
        """The first `most` blocks that each tile visits, in order; entries from `visited` on are invalid."""
        first, inner, full = (x[..., None] for x in (self.first, self.inner, self.full))
        index = jnp.arange(most, dtype=jnp.int32)
        return jnp.where(index < full, inner + index, cut_block(index - full, first, inner, full))


def cut_block(index: Any, first: Any, inner: Any, full: Any) -> Any:
    """The `index`th partial block: first those before the full ones, then those after. Works on arrays, and on the
    scalars of one tile inside a kernel."""
    return first + index + jnp.where(index < inner - first, 0, full)


def most_visited(mask: Mask, tile: int, block: int) -> int | None:
    """Blocks that a tile visits at most where indices grow by one from token to token; None if there is no bound."""
    if mask.window is None or not mask.causal or mask.prefix:
        return None
    return -(-(tile + mask.window - 1) // block) + 1
