"""The mapping `model.per_layer_embeddings`: numbers of each token for each layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import WIDTH, at_least


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
