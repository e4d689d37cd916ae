"""Token and position embeddings."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpar.config.counting import embedding_scale, padded_vocab
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.part import Weights
from jaxpar.layers.inputs.input import TIED, Input
from jaxpar.layers.inputs.per_layer import TABLE, per_layer_flops, per_layer_inputs, per_layer_rows, per_layer_weights
from jaxpar.layers.residual.altup import spread, stream_matrices
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.runtime.batch import POSITIONS, TOKENS


class TokenEmbedding(Input):
    """Rows of a table by token, plus rows of a second table by position where positions are learned; and behind them
    the inputs of layers, where these have some."""

    fields = (TOKENS, POSITIONS)

    def __init__(self, model: ModelConfig):
        super().__init__(model)
        self.learned_positions = model.position == "learned"
        self.factor, self.streams = embedding_scale(model), tuple(stream_matrices(model))
        self.model = model

    @staticmethod
    def declare(model: ModelConfig) -> Weights:
        """Declares the tables of tokens, positions and token types."""
        tables = {TIED: vocabulary_matrix(model, "vocab", "embed")}
        if model.position == "learned":
            shape = model.max_positions, model.embed
            tables["positions"] = ParamSpec(shape, ("positions", "embed"), scale=model.init_scale, decay=True)
        if model.token_types:
            shape = model.token_types, model.embed
            tables["token_types"] = ParamSpec(shape, ("input", "embed"), scale=model.init_scale, decay=True)
        return Weights(tables | per_layer_weights(model) | stream_matrices(model))

    @staticmethod
    def flops(model: ModelConfig) -> int:
        """FLOPs of the projection to the inputs of layers, and of the matrices into further residual streams."""
        return per_layer_flops(model) + 2 * sum(spec.size for spec in stream_matrices(model).values())

    def lookups(self, batch: Mapping[str, jax.Array]) -> dict[str, Int[Array, "batch seq"]]:
        """Tokens, and positions where they are learned."""
        positions = {"positions": batch["positions"]} if self.learned_positions else {}
        inputs = {TABLE: per_layer_rows(batch["tokens"], self.model)} if self.model.per_layer_embeddings else {}
        return {TIED: batch["tokens"]} | positions | inputs

    def __call__(self, batch: Mapping[str, jax.Array]) -> Float[Array, "batch part embed"]:
        """The sum of the rows, in each residual stream."""
        x = self.weight(TIED)
        if self.factor != 1:
            x = x * jnp.asarray(self.factor, x.dtype)  # rounded first, as Gemma was trained
        x = x + self.weight("positions") if self.learned_positions else x
        x = x + self.weight("token_types")[0] if hasattr(self, "token_types") else x
        inputs = [] if self.model.per_layer_embeddings is None else [per_layer_inputs(x, self.weight, self.model)]
        x = spread(x, [self.weight(name) for name in self.streams]) if self.streams else x
        return jnp.concatenate([x, *inputs], axis=-1) if inputs else x


def vocabulary_matrix(model: ModelConfig, *axes: str) -> ParamSpec:
    """The declaration of a matrix with the logical `axes` `vocab` and `embed`, its vocabulary padded."""
    sizes = {"vocab": padded_vocab(model), "embed": model.embed}
    assert model.vocab is not None, "a padded vocabulary is known"
    shape, padding = tuple(sizes[axis] for axis in axes), sizes["vocab"] - model.vocab
    return ParamSpec(shape, axes, scale=model.init_scale, decay=True, padding=padding)
