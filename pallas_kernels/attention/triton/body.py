"""Code shared by the three kernels: reading tiles of heads and tokens, and the scores of a block of pairs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.attention.settings import Settings
from pallas_kernels.attention.triton.lists import PADDING_INDEX
from pallas_kernels.attention.triton.tiles import pieces
from pallas_kernels.masks import keeps
from pallas_kernels.pallas import pl
from pallas_kernels.pallas import triton as plgpu

LOG2E = math.log2(math.e)

type Pieces = tuple[jax.Array, ...]
"""A tile of heads, cut along the width into powers of two: see `pieces`."""


class Rows(NamedTuple):
    """Some neighbouring tokens of a row; `inside` is None where none of them is past the end."""

    start: jax.Array
    size: int
    inside: jax.Array | None

    @classmethod
    def of(cls, block: jax.Array, size: int, length: int) -> Rows:
        """The tokens of a block of a row of `length` tokens."""
        start = block * size
        inside = None if length % size == 0 else start + jnp.arange(size, dtype=jnp.int32) < length
        return cls(start, size, inside)

    def of_heads(self, ref: Any, row: jax.Array, head: jax.Array) -> Pieces:
        """[size, width] of an array [batch, tokens, heads, width], zero past the end."""
        mask = None if self.inside is None else self.inside[:, None]
        other = None if self.inside is None else 0.0
        tile = lambda first, size: ref.at[row, pl.ds(self.start, self.size), head, pl.ds(first, size)]
        return tuple(plgpu.load(tile(*piece), mask=mask, other=other) for piece in pieces(ref.shape[-1]))

    def of_statistics(self, ref: Any, row: jax.Array, head: jax.Array, other: float) -> jax.Array:
        """[size] of an array [batch, heads, tokens], `other` past the end."""
        other_ = None if self.inside is None else other
        return plgpu.load(ref.at[row, head, pl.ds(self.start, self.size)], mask=self.inside, other=other_)

    def of_tokens(self, ref: Any, row: jax.Array, other: int) -> jax.Array:
        """[size] of an array [batch, tokens], `other` past the end."""
        other_ = None if self.inside is None else other
        return plgpu.load(ref.at[row, pl.ds(self.start, self.size)], mask=self.inside, other=other_)

    def store(self, ref: Any, row: jax.Array, head: jax.Array, values: Pieces) -> None:
        """Write to an array [batch, tokens, heads, width]."""
        mask = None if self.inside is None else self.inside[:, None]
        for (first, size), value in zip(pieces(ref.shape[-1]), values, strict=True):
            tile = ref.at[row, pl.ds(self.start, self.size), head, pl.ds(first, size)]
            plgpu.store(tile, value.astype(ref.dtype), mask=mask)


def scores(settings: Settings, a: Pieces, b: Pieces) -> jax.Array:
    """Scores [tokens of a, tokens of b] after scale and soft-cap, in units of log(2)."""
    raw = products(a, b)
    if settings.softcap is None:
        return raw * (settings.scale * LOG2E)
    # tanh(x) = 1 - 2 / (exp(2 x) + 1): exact to float32's rounding for caps, and a single fast exponential.
    powers = jnp.exp2(raw * (2.0 * LOG2E * settings.scale / settings.softcap))
    return (settings.softcap * LOG2E) * (1.0 - 2.0 / (powers + 1.0))


def softcap_slope(settings: Settings, scores: jax.Array) -> jax.Array:
    """Derivative of the soft-cap at scores in units of log(2)."""
    assert settings.softcap is not None
    capped = scores * (1.0 / (settings.softcap * LOG2E))
    return 1.0 - capped * capped


def products(a: Pieces, b: Pieces) -> jax.Array:
    """Inner products [tokens of a, tokens of b], in float32."""
    return sum(
        (plgpu.dot(x, y, trans_b=True) for x, y in zip(a[1:], b[1:], strict=True)), plgpu.dot(a[0], b[0], trans_b=True)
    )


def pairs(settings: Settings, tokens: Any, row: jax.Array, queries: Rows, keys: Rows, *, keys_first: bool) -> jax.Array:
    """The pairs that the mask keeps, [queries, keys] or, with `keys_first`, [keys, queries]."""
    of_query = (lambda x: x[None, :]) if keys_first else (lambda x: x[:, None])
    of_key = (lambda x: x[:, None]) if keys_first else (lambda x: x[None, :])
    q_index = of_query(queries.of_tokens(tokens.q_indices, row, 0))
    kv_index = of_key(keys.of_tokens(tokens.kv_indices, row, PADDING_INDEX))
    q_segment, kv_segment, prefix = None, None, None
    if settings.mask.segmented:
        q_segment = of_query(queries.of_tokens(tokens.q_segments, row, 0))
        kv_segment = of_key(keys.of_tokens(tokens.kv_segments, row, 0))
    if settings.mask.causal and settings.mask.prefix:
        prefix = tokens.prefix_lengths[row]
    visible = keeps(settings.mask, q_index, kv_index, q_segment, kv_segment, prefix)
    if keys.inside is not None and not settings.mask.causal:  # a causal mask never reaches the index of the padding
        visible &= of_key(keys.inside)
    return visible
