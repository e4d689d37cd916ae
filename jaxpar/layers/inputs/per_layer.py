"""The inputs of layers (`model.per_layer_embeddings`) as the model's input makes them, from tokens and embeddings."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpar.config.mappings.residual import PerLayerEmbeddings
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.part import vector
from jaxpar.layers.norm import NORMS, rms_normalize
from jaxpar.mesh.parameters import ParamSpec

TABLE, PROJECTION, NORM = "per_layer_tokens", "per_layer_projection", "per_layer_norm"


def per_layer_weights(model: ModelConfig) -> dict[str, ParamSpec]:
    """The table, the projection and the norm; none without `model.per_layer_embeddings`."""
    options = model.per_layer_embeddings
    if options is None:
        return {}
    width, rows = model.layers * options.width, table_rows(model, options)
    padded = -(-rows // model.vocab_multiple) * model.vocab_multiple
    table = ParamSpec((padded, width), ("vocab", "embed"), scale=model.init_scale, decay=True, padding=padded - rows)
    projection = ParamSpec((width, model.embed), ("input", "embed"), scale=model.init_scale, decay=True)
    return {TABLE: table, PROJECTION: projection, NORM: vector((options.width,), ("norm",), NORMS[model.norm].neutral)}


def table_rows(model: ModelConfig, options: PerLayerEmbeddings) -> int:
    """Rows of the table without padding."""
    rows = options.vocab or model.vocab
    assert rows is not None, "the vocabulary is known once the data is open"
    return rows


def per_layer_flops(model: ModelConfig) -> int:
    """FLOPs of a token in the projection, forward."""
    options = model.per_layer_embeddings
    return 0 if options is None else 2 * model.embed * model.layers * options.width


def per_layer_rows(tokens: Int[Array, "batch seq"], model: ModelConfig) -> Int[Array, "batch seq"]:
    """The row of each token in the table: that of token 0 if it has none."""
    assert model.per_layer_embeddings is not None, "a model whose layers have inputs"
    rows = table_rows(model, model.per_layer_embeddings)
    return jnp.where(tokens < rows, tokens, 0)


def per_layer_inputs(
    x: Float[Array, "batch part embed"], weight: Callable[[str], jax.Array], model: ModelConfig
) -> Float[Array, "batch part inputs"]:
    """The inputs of all layers, from embeddings `x` and weights of which the table is the rows of the tokens."""
    options = model.per_layer_embeddings
    assert options is not None, "a model whose layers have inputs"
    rows = weight(TABLE)
    rows = rows * jnp.asarray(options.width**0.5, rows.dtype)
    projected = jnp.einsum("bpe,ie->bpi", x, weight(PROJECTION)) * jnp.asarray(model.embed**-0.5, x.dtype)
    scale = NORMS[model.norm].factors(weight(NORM))
    projected = projected.reshape(*x.shape[:-1], model.layers, options.width)
    projected = rms_normalize(projected, scale, model.norm_epsilon).reshape(rows.shape)
    return (projected + rows) * jnp.asarray(2**-0.5, x.dtype)
