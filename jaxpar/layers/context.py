"""The tokens of a layer, apart from their activations: documents, indices and what is given with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, UInt

from jaxpar.config.schema import ModelConfig
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_context


class TokenContext(NamedTuple):
    """One rank's rows and its context part of the sequence (`seq` = sequence length / context)."""

    segments: Int[Array, "batch seq"]
    """Document of each token in its row, from 1; 0 is padding."""
    indices: Int[Array, "batch seq"]
    """Index of each token in its row; masks are causal by it."""
    row_segments: Int[Array, "batch row"]
    """`segments` of the whole rows, one context rank's part after another."""
    row_indices: Int[Array, "batch row"]
    """`indices` of the whole rows, likewise."""
    examples: Int[Array, " batch"]
    """Global example index of each row, which wraps at 2^31: it seeds draws, and orders the tokens of a batch."""
    cos: Float[Array, "batch seq half"] | None
    """Cosines of the rotary angles; None without rotary embeddings."""
    sin: Float[Array, "batch seq half"] | None
    """Sines of the rotary angles."""
    temperature: Float[Array, "batch seq"] | None = None
    """Factors of queries (`model.attention_temperature`); None without."""
    fields: Mapping[str, Array] = {}
    """Fields of the batch, by name, that the layer's blocks declare."""
    seed: UInt[Array, ""] | None = None
    """Seed of dropout and of routers that draw, in training."""
    carried: Mapping[str, Any] = {}
    """Arrays by name that carried state gives to layers (`jaxpar.runtime.carried`): read by a feature's own ops."""

    def tempered(self, query: Float[Array, "batch seq heads width"]) -> Float[Array, "batch seq heads width"]:
        """Queries times the factor of each position."""
        if self.temperature is None:
            return query
        return (query.astype(jnp.float32) * self.temperature[:, :, None, None]).astype(query.dtype)


def chunk_segments[A: (jax.Array, np.ndarray)](segments: A, positions: A, size: int, length: int) -> A:
    """`segments` [batch, seq] of rows of `length` tokens, with another number for each chunk of `size` positions of a
    document, which grows along the row."""
    chunks = length // size + 1  # at most, in a document
    return (segments > 0) * (segments * chunks + positions // size)


def attention_tokens(tokens: TokenContext, positions: jax.Array, model: ModelConfig) -> TokenContext:
    """`tokens` as attention of layers that are all alike needs them: documents in chunks, and factors of queries."""
    if model.chunk is not None:
        segments = chunk_segments(tokens.segments, vary(positions), model.chunk, tokens.row_segments.shape[1])
        tokens = tokens._replace(segments=segments, row_segments=gather_context(segments))
    if (temperature := model.attention_temperature) is not None:
        steps = ((positions + temperature.offset) // temperature.floor).astype(jnp.float32)
        tokens = tokens._replace(temperature=vary(1 + temperature.scale * jnp.log1p(steps)))
    return tokens


def sequence_part(x: jax.Array) -> jax.Array:
    """This tensor rank's part of `x` [batch, seq, ...], as activations are split between blocks."""
    length = x.shape[1] // lax.axis_size("tensor")
    return lax.dynamic_slice_in_dim(x, lax.axis_index("tensor") * length, length, axis=1)
