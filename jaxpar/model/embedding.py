"""Token and position embeddings, and the output head, their vocabulary split over the tensor axis."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.config.counting import padded_vocab
from jaxpar.config.schema import ModelConfig
from jaxpar.mesh.collectives import gather_sequence, scatter_sequence
from jaxpar.model.context import sequence_part
from jaxpar.model.weights import weight


class Embedding(nnx.Module):
    """Rows of a table by token, plus rows of a second table by position where positions are learned."""

    def __init__(self, model: ModelConfig):
        self.tokens = weight((padded_vocab(model), model.embed), ("vocab", "embed"), scale=model.init_scale, decay=True)
        self.learned = model.position == "learned"
        if self.learned:
            self.positions = weight(
                (model.max_positions, model.embed), ("positions", "embed"), scale=model.init_scale, decay=True
            )

    def __call__(
        self, tokens: Int[Array, "batch seq"], positions: Int[Array, "batch seq"]
    ) -> Float[Array, "batch part embed"]:
        """Each rank looks up the tokens of its vocabulary part; the sum over ranks lands split by sequence."""
        table = self.tokens[...]
        local = tokens - lax.axis_index("tensor") * table.shape[0]
        own = (local >= 0) & (local < table.shape[0])
        x = jnp.where(own[..., None], table[jnp.where(own, local, 0)], 0)
        x = scatter_sequence(x)
        return x + self.positions[...][sequence_part(positions)] if self.learned else x


class Head(nnx.Module):
    """The matmul onto the vocabulary; a tied model has none and uses its embedding table."""

    def __init__(self, model: ModelConfig):
        self.weight = weight((model.embed, padded_vocab(model)), ("embed", "vocab"), scale=model.init_scale, decay=True)


def vocabulary_logits(
    x: Float[Array, "batch part embed"], table: Float[Array, "embed local_vocab"], model: ModelConfig
) -> Float[Array, "batch seq local_vocab"]:
    """Float32 logits of this rank's part of the vocabulary; columns that only pad it are minus infinity."""
    assert model.vocab is not None, "the vocabulary is known once the data is open"
    x = gather_sequence(x)
    logits = jnp.einsum("bse,ev->bsv", x, table, preferred_element_type=jnp.float32)
    if model.logit_softcap is not None:
        logits = model.logit_softcap * jnp.tanh(logits / model.logit_softcap)
    columns = lax.axis_index("tensor") * table.shape[1] + jnp.arange(table.shape[1])
    return jnp.where(columns < model.vocab, logits, -jnp.inf)
