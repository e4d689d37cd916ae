"""RMSNorm and LayerNorm, computed in float32."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration import Norm, Traffic, Weights, vector
from jaxpar.layers.weights import declare_weights
from jaxpar.mesh.collectives import sum_over_heads

RMS_TRAFFIC = Traffic(2, 4, unfused=16, unfused_backward=28)


def rms_normalize(
    x: Float[Array, "*batch dim"], scale: Float[Array, "dim"], epsilon: float
) -> Float[Array, "*batch dim"]:
    """`scale * x / sqrt(mean(x^2) + epsilon)` (arXiv:1910.07467)."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + epsilon)
    return (y * scale.astype(jnp.float32)).astype(x.dtype)


def rms_normalize_heads(
    heads: Sequence[Float[Array, "batch seq heads head_dim"]],
    scales: Sequence[Float[Array, "heads head_dim"]],
    epsilon: float,
) -> list[jax.Array]:
    """`rms_normalize` of each of `heads` over all of its heads at once, of which a tensor rank has a share.

    Where ranks share a head, each of them counts it. One message adds up the squares of all of `heads`.
    """
    wide = [x.astype(jnp.float32) for x in heads]
    squares = sum_over_heads(jnp.stack([jnp.sum(x * x, axis=(-2, -1)) for x in wide]))
    numbers = [lax.axis_size("tensor") * x.shape[-2] * x.shape[-1] for x in wide]
    factors = [lax.rsqrt(s / n + epsilon)[..., None, None] for s, n in zip(squares, numbers, strict=True)]
    return [
        (y * factor * scale.astype(jnp.float32)).astype(x.dtype)
        for x, y, factor, scale in zip(heads, wide, factors, scales, strict=True)
    ]


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation over the embedding."""

    def __init__(self, model: ModelConfig):
        self.epsilon = model.norm_epsilon
        declare_weights(self, self.declare(model).weights)
        self.scale: nnx.Param

    @staticmethod
    def declare(model: ModelConfig) -> Norm:
        """One kernel reads and writes; kernel by kernel the square, its mean, and two products move all numbers."""
        return Norm(Weights(scale=vector((model.embed,), ("norm",), init="ones")), RMS_TRAFFIC)

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        return rms_normalize(x, self.scale[...], self.epsilon)


class ZeroCenteredRMSNorm(nnx.Module):
    """`RMSNorm` whose weights begin at 0 and are added to 1 (Gemma)."""

    def __init__(self, model: ModelConfig):
        self.epsilon = model.norm_epsilon
        declare_weights(self, self.declare(model).weights)
        self.scale: nnx.Param

    @staticmethod
    def declare(model: ModelConfig) -> Norm:
        """As `RMSNorm`."""
        return Norm(Weights(scale=vector((model.embed,), ("norm",), init="zeros")), RMS_TRAFFIC)

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        return rms_normalize(x, from_zero(self.scale[...]), self.epsilon)


def from_zero(scale: Float[Array, "*dims"]) -> Float[Array, "*dims"]:
    """1 plus a weight that begins at 0, in float32: rounded to bfloat16 it would lose what is below 1/256."""
    return 1.0 + scale.astype(jnp.float32)


class LayerNorm(nnx.Module):
    """Normalisation to mean 0 and variance 1 over the embedding, with scale and bias (arXiv:1607.06450)."""

    def __init__(self, model: ModelConfig):
        self.epsilon = model.norm_epsilon
        declare_weights(self, self.declare(model).weights)
        self.scale: nnx.Param
        self.bias: nnx.Param

    @staticmethod
    def declare(model: ModelConfig) -> Norm:
        """Software without fused norms has a kernel of its own for this one, in three passes."""
        shape, axes = (model.embed,), ("norm",)
        weights = Weights(scale=vector(shape, axes, init="ones"), bias=vector(shape, axes))
        return Norm(weights, Traffic(2, 4, unfused=6, unfused_backward=10))

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        y = x.astype(jnp.float32)
        y = y - y.mean(axis=-1, keepdims=True)
        y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.epsilon)
        scale, bias = self.scale[...].astype(jnp.float32), self.bias[...].astype(jnp.float32)
        return (y * scale + bias).astype(x.dtype)


NORMS = {"rmsnorm": RMSNorm, "zero_centered_rmsnorm": ZeroCenteredRMSNorm, "layernorm": LayerNorm}
"""Every normalisation that `model.norm` can name."""
