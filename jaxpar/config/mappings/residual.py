"""The mappings `model.residual`, `model.altup` and `model.per_layer_embeddings`: about the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import POSITIVE, WIDTH, at_least

MOST_STREAMS = 8


@dataclass(frozen=True)
class ResidualConfig:
    """A block f makes `stream * x + output * f(x)` of the residual stream x, with a pair of factors for mixers and one
    for feed-forwards and experts: DeepNorm's alpha is a `stream` (arXiv:2203.00555)."""

    mixer_stream: Annotated[float, POSITIVE] = 1.0
    """Factor of the residual stream where the output of attention, or another mixer, is added (MiniMax-01)."""
    mixer_output: Annotated[float, POSITIVE] = 1.0
    """Factor of that output (Granite)."""
    mlp_stream: Annotated[float, POSITIVE] = 1.0
    """Factor of the residual stream where the output of the feed-forward or of experts is added."""
    mlp_output: Annotated[float, POSITIVE] = 1.0
    """Factor of that output."""


@dataclass(frozen=True)
class AltUpConfig:
    """Alternating updates (arXiv:2301.13310): layers compute with one of several residual streams, predict all of them
    from all, and correct each by what the layer made of that one (Gemma 3n)."""

    streams: Annotated[int, at_least(2, MOST_STREAMS)] = 4
    """Residual streams, each as wide as `model.embed`."""
    active: Annotated[int, at_least(0, MOST_STREAMS - 1)] = 0
    """The stream that layers compute with, from 0."""
    clip: Annotated[float, POSITIVE] | None = None
    """Limit of the magnitude of the coefficients' weights in training; null means none."""


@dataclass(frozen=True)
class PerLayerEmbeddings:
    """Each layer gets `width` numbers of each token: the sum of the token's row in a second table and of a projection
    of its embedding, after an RMSNorm, over the root of 2. A third block of the layer multiplies them with a GELU of a
    projection of the residual stream, and adds a norm of their projection to the stream (Gemma 3n, Gemma 4)."""

    width: Annotated[int, at_least(1, WIDTH)]
    """Numbers that a layer gets of a token."""
    vocab: Annotated[int, at_least(1)] | None = None
    """Rows of the table, if it has fewer than there are tokens: later tokens have the row of token 0; null means
    `model.vocab`."""
