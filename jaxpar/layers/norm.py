"""RMSNorm and LayerNorm, computed in float32."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.part import Weights, vector
from jaxpar.layers.declaration.weights import declare_weights
from jaxpar.mesh.collectives import sum_over_heads


def rms_normalize(
    x: Float[Array, "*batch dim"], scale: Float[Array, " dim"], epsilon: float
) -> Float[Array, "*batch dim"]:
    """`scale * x / sqrt(mean(x^2) + epsilon)` (arXiv:1910.07467)."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + epsilon)
    return (y * scale.astype(jnp.float32)).astype(x.dtype)


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
        y = x.astype(jnp.float32)
        y = y - y.mean(axis=-1, keepdims=True)
        y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.epsilon)
        y = y * self.scale[...].astype(jnp.float32)
        return (y + self.bias[...].astype(jnp.float32) if hasattr(self, "bias") else y).astype(x.dtype)


class LayerNormWithoutBias(LayerNorm):
    """`LayerNorm` with a scale alone (ModernBERT)."""

    @classmethod
    def declare(cls, model: ModelConfig) -> Weights:
        return Weights(scale=vector((model.embed,), ("norm",), init=cls.neutral))


NORMS = {
    "rmsnorm": RMSNorm, "zero_centered_rmsnorm": ZeroCenteredRMSNorm, "layernorm": LayerNorm,
    "layernorm_without_bias": LayerNormWithoutBias,
}  # fmt: skip
"""Every normalisation that `model.norm` can name."""
