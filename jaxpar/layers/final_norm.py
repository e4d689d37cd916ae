"""The norm between the last layer and the head; in BERT's models a transform behind it, and a bias of the logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxpar.config.counting import padded_vocab
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.part import Weights, vector
from jaxpar.layers.declaration.weights import declare_weights
from jaxpar.layers.norm import NORMS
from jaxpar.mesh.parameters import ParamSpec

TRANSFORM, HEAD_BIAS = "transform", "head_bias"
ALIGNED = 16
"""Columns by which the head's operands grow for a bias: the first one has it."""


class Transform(nnx.Module):
    """`norm(gelu(x @ weight + bias))`; every tensor rank has the full weight, for its part of the sequence."""

    def __init__(self, model: ModelConfig):
        declare_weights(self, _transform(model))
        self.norm = NORMS[model.norm](model)
        self.weight: nnx.Param
        self.bias: nnx.Param

    def __call__(self, x: Float[Array, "batch part embed"]) -> Float[Array, "batch part embed"]:
        x = x @ self.weight[...]
        if hasattr(self, "bias"):
            x = x + self.bias[...]
        return self.norm(jax.nn.gelu(x, approximate=False))


def final_norm(model: ModelConfig) -> nnx.Module:
    """The norm, with a `Transform` and the bias of the logits as attributes where the model has them."""
    norm = NORMS[model.norm](model)
    if model.head_transform:
        setattr(norm, TRANSFORM, Transform(model))
    if model.head_bias:
        declare_weights(norm, {HEAD_BIAS: _head_bias(model)})
    return norm


def final_parameters(model: ModelConfig) -> int:
    """Number of its weights."""
    norm = NORMS[model.norm].declare(model).size
    transform = Weights(_transform(model)).size + norm if model.head_transform else 0
    return norm + transform + (model.vocab or 0) * model.head_bias


def with_bias_column(
    x: Float[Array, "batch part embed"],
    table: Float[Array, "..."],
    bias: Float[Array, " local_vocab"],
    vocab_first: bool,
) -> tuple[Float[Array, "batch part wider"], Float[Array, "..."]]:
    """The head's operands with a bias of the logits: a column of ones, and the bias as that column's weights."""
    column = jnp.zeros((ALIGNED, *bias.shape), table.dtype).at[0].set(bias.astype(table.dtype))
    ones = jnp.zeros((*x.shape[:-1], ALIGNED), x.dtype).at[..., 0].set(1)
    wider = jnp.concatenate([table, column.T if vocab_first else column], axis=1 if vocab_first else 0)
    return jnp.concatenate([x, ones], axis=-1), wider


def _transform(model: ModelConfig) -> dict[str, ParamSpec]:
    weight = ParamSpec((model.embed, model.embed), ("input", "embed"), scale=model.init_scale, decay=True)
    return {"weight": weight} | ({"bias": vector((model.embed,), ("norm",))} if model.mlp_bias else {})


def _head_bias(model: ModelConfig) -> ParamSpec:
    rows = padded_vocab(model)
    return ParamSpec((rows,), ("vocab",), init="zeros", padding=rows - (model.vocab or rows))
