"""RMSNorm and LayerNorm, computed in float32."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.model.weights import weight


def rms_normalize(
    x: Float[Array, "*batch dim"], scale: Float[Array, "dim"], epsilon: float
) -> Float[Array, "*batch dim"]:
    """`scale * x / sqrt(mean(x^2) + epsilon)` (arXiv:1910.07467)."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + epsilon)
    return (y * scale.astype(jnp.float32)).astype(x.dtype)


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation over the embedding."""

    def __init__(self, model: ModelConfig):
        self.epsilon = model.norm_epsilon
        self.scale = weight((model.embed,), ("norm",), init="ones")

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        return rms_normalize(x, self.scale[...], self.epsilon)


class LayerNorm(nnx.Module):
    """Normalisation to mean 0 and variance 1 over the embedding, with scale and bias (arXiv:1607.06450)."""

    def __init__(self, model: ModelConfig):
        self.epsilon = model.norm_epsilon
        self.scale = weight((model.embed,), ("norm",), init="ones")
        self.bias = weight((model.embed,), ("norm",), init="zeros")

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        y = x.astype(jnp.float32)
        y = y - y.mean(axis=-1, keepdims=True)
        y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.epsilon)
        scale, bias = self.scale[...].astype(jnp.float32), self.bias[...].astype(jnp.float32)
        return (y * scale + bias).astype(x.dtype)


NORMS = {"rmsnorm": RMSNorm, "layernorm": LayerNorm}
"""Every normalisation that `model.norm` can name."""
