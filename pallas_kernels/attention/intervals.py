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
    """For each tile, the blocks of the other side that it visits: whole ones first, then the cut ones around them."""

    first: Int[Array, "batch tiles"]
    """The first block that is visited."""
    inner: Int[Array, "batch tiles"]
    """The first one of which the mask keeps every pair; `first` where there is none."""
    whole: Int[Array, "batch tiles"]
    """How many of those follow each other."""
    kept: Int[Array, "batch tiles"]
    """How many are visited in all."""

    @classmethod
    def of(cls, kept: Bool[Array, "batch tiles blocks"], whole: Bool[Array, "batch tiles blocks"]) -> Intervals:
        """From which must be visited, and which need no look at their pairs."""
        others = kept.shape[-1]
        place = jnp.arange(others, dtype=jnp.int32)
        first = jnp.where(kept, place, others).min(-1)
        last = jnp.where(kept, place, -1).max(-1)
        inner = jnp.where(whole, place, others).min(-1)
        beyond = jnp.where(~whole & (place >= inner[..., None]), place, others).min(-1)
        wholes = beyond - inner
        return cls(first, jnp.where(wholes > 0, inner, first), wholes, jnp.maximum(last + 1 - first, 0))

    def blocks(self, most: int) -> Int[Array, "batch tiles {most}"]:
        """The first `most` blocks that each tile visits, in their order; what is beyond its `kept` is no block."""
        first, inner, whole = (x[..., None] for x in (self.first, self.inner, self.whole))
        index = jnp.arange(most, dtype=jnp.int32)
        return jnp.where(index < whole, inner + index, cut_block(index - whole, first, inner, whole))


def cut_block(index: Any, first: Any, inner: Any, whole: Any) -> Any:
    """The `index`th of the blocks that the mask cuts: those before the whole ones, then those after. For arrays, and
    for the numbers of one tile inside a kernel."""
    return first + index + jnp.where(index < inner - first, 0, whole)


def most_visited(mask: Mask, tile: int, block: int) -> int | None:
    """Blocks that a tile visits at most where indices grow by one from token to token; None if there is no bound."""
    if mask.window is None or not mask.causal or mask.prefix:
        return None
    return -(-(tile + mask.window - 1) // block) + 1
