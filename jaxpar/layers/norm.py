"""RMSNorm and LayerNorm, computed in float32; and the norm before the head, with what BERT has behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.counting import padded_vocab
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.part import Weights, vector
from jaxpar.layers.declaration.weights import declare_weights
from jaxpar.layers.residual.altup import stream_matrices
from jaxpar.mesh.collectives import sum_over_heads
from jaxpar.mesh.parameters import ParamSpec


def rms_normalize(
    x: Float[Array, "*batch dim"], scale: Float[Array, " dim"], epsilon: float
) -> Float[Array, "*batch dim"]:
    """`scale * x / sqrt(mean(x^2) + epsilon)` (arXiv:1910.07467)."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + epsilon)
    return (y * scale.astype(jnp.float32)).astype(x.dtype)


def layer_normalize(
    x: Float[Array, "*batch dim"],
    scale: Float[Array, "*dims"] | None,
    bias: Float[Array, " dim"] | None,
    epsilon: float,
) -> Float[Array, "*batch dim"]:
    """`scale * (x - mean(x)) / sqrt(variance(x) + epsilon) + bias` (arXiv:1607.06450); null terms are left out."""
    y = x.astype(jnp.float32)
    y = y - y.mean(axis=-1, keepdims=True)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + epsilon)
    y = y if scale is None else y * scale.astype(jnp.float32)
    return (y if bias is None else y + bias.astype(jnp.float32)).astype(x.dtype)


def rms_normalize_heads(
    q: Float[Array, "batch seq heads head_dim"],
    k: Float[Array, "batch seq kv_heads head_dim"],
    q_scale: Float[Array, "heads head_dim"],
    k_scale: Float[Array, "kv_heads head_dim"],
    epsilon: float,
) -> tuple[jax.Array, jax.Array]:
    """`rms_normalize` of queries and of keys, each over all of its heads at once, of which a tensor rank has a share.

    Where ranks share a head, each of them adds it up. One message sums the squares of both.
    """
    wide = [x.astype(jnp.float32) for x in (q, k)]
    squares = sum_over_heads(jnp.stack([jnp.sum(x * x, axis=(-2, -1)) for x in wide]))

    def normalized(x: jax.Array, square: jax.Array, scale: jax.Array) -> jax.Array:
        factor = lax.rsqrt(square / (lax.axis_size("tensor") * x.shape[-2] * x.shape[-1]) + epsilon)
        return (x * factor[..., None, None] * scale.astype(jnp.float32)).astype(q.dtype)

    return normalized(wide[0], squares[0], q_scale), normalized(wide[1], squares[1], k_scale)


class LayerScale(nnx.Module):
    """A factor of the output of a layer, which has no gradient (`model.layer_scale`)."""

    def __init__(self) -> None:
        declare_weights(self, self.declare())
        self.scale: nnx.Param

    @staticmethod
    def declare() -> Weights:
        """The factor."""
        return Weights(scale=vector((1,), ("norm",), "ones"))

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        """`scale * x`."""
        return x * lax.stop_gradient(self.scale[...]).astype(x.dtype)


class FeatureNorm(nnx.Module, ABC):
    """A norm over the embedding; the norms of queries and keys (`model.qk_norm`) use its `neutral` and `factors`."""

    neutral: ClassVar[Literal["ones", "zeros"]] = "ones"
    """Initial value of scale weights: the one that changes nothing."""

    def __init__(self, model: ModelConfig):
        self.epsilon = model.norm_epsilon
        declare_weights(self, self.declare(model))
        self.scale: nnx.Param
        self.bias: nnx.Param

    @classmethod
    def declare(cls, model: ModelConfig) -> Weights:
        """Its weights."""
        return Weights(scale=vector((model.embed,), ("norm",), init=cls.neutral))

    @staticmethod
    def factors(scale: Float[Array, "*dims"]) -> Float[Array, "*dims"]:
        """The factors that scale weights stand for."""
        return scale

    @abstractmethod
    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        """`x`, normalized."""


class RMSNorm(FeatureNorm):
    """Root-mean-square normalisation over the embedding."""

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        return rms_normalize(x, self.factors(self.scale[...]), self.epsilon)


class ZeroCenteredRMSNorm(RMSNorm):
    """`RMSNorm` whose weights begin at 0 and are added to 1 (Gemma)."""

    neutral = "zeros"

    @staticmethod
    def factors(scale: Float[Array, "*dims"]) -> Float[Array, "*dims"]:
        """1 plus the weights, in float32: rounding to bfloat16 would lose what is below 1/256."""
        return 1.0 + scale.astype(jnp.float32)


class LayerNorm(FeatureNorm):
    """Normalisation to mean 0 and variance 1 over the embedding, with scale and bias (arXiv:1607.06450)."""

    @classmethod
    def declare(cls, model: ModelConfig) -> Weights:
        return Weights(super().declare(model), bias=vector((model.embed,), ("norm",)))

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        return layer_normalize(x, self.scale[...], self.bias[...], self.epsilon)


class UnbiasedLayerNorm(FeatureNorm):
    """`LayerNorm` without bias (Cohere)."""

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        return layer_normalize(x, self.scale[...], None, self.epsilon)


class WeightlessLayerNorm(FeatureNorm):
    """`LayerNorm` without weights (OLMo 1)."""

    @classmethod
    def declare(cls, model: ModelConfig) -> Weights:
        return Weights()

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        return layer_normalize(x, None, None, self.epsilon)


NORMS = {
    "rmsnorm": RMSNorm, "zero_centered_rmsnorm": ZeroCenteredRMSNorm, "layernorm": LayerNorm,
    "unbiased_layernorm": UnbiasedLayerNorm, "weightless_layernorm": WeightlessLayerNorm,
}  # fmt: skip
"""Every normalisation that `model.norm` can name."""

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
    """The norm, with a `Transform`, the bias of the logits and the matrices of further residual streams as attributes
    where the model has them."""
    norm = NORMS[model.norm](model)
    if model.head_transform:
        setattr(norm, TRANSFORM, Transform(model))
    declare_weights(norm, stream_matrices(model))
    if model.head_bias:
        declare_weights(norm, {HEAD_BIAS: _head_bias(model)})
    return norm


def final_parameters(model: ModelConfig) -> int:
    """Number of its weights."""
    norm = NORMS[model.norm].declare(model).size
    transform = Weights(_transform(model)).size + norm if model.head_transform else 0
    streams = Weights(stream_matrices(model)).size
    return norm + transform + streams + (model.vocab or 0) * model.head_bias


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
