"""RMSNorm of each head and its rotary embedding in plain JAX, in float32 or, of float64, in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def forward(
    x: Float[Array, "tokens heads head_dim"],
    scale: Float[Array, " head_dim"],
    cos: Float[Array, "tokens half"],
    sin: Float[Array, "tokens half"],
    *,
    epsilon: float,
    interpret: bool = False,
) -> Float[Array, "tokens heads head_dim"]:
    """The heads of each token, normed and rotated. The interpreter makes no difference here."""
    del interpret
    wide = jnp.promote_types(x.dtype, jnp.float32)
    y = x.astype(wide)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + epsilon) * scale.astype(wide)
    a, b = jnp.split(y, 2, axis=-1)
    cos, sin = cos.astype(wide)[:, None], sin.astype(wide)[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def backward(
    x: Float[Array, "tokens heads head_dim"],
    scale: Float[Array, " head_dim"],
    cos: Float[Array, "tokens half"],
    sin: Float[Array, "tokens half"],
    d_out: Float[Array, "tokens heads head_dim"],
    *,
    epsilon: float,
    interpret: bool = False,
) -> tuple[Float[Array, "tokens heads head_dim"], Float[Array, " head_dim"]]:
    """Gradients of x and of scale."""
    del interpret
    return jax.vjp(lambda x, scale: forward(x, scale, cos, sin, epsilon=epsilon), x, scale)[1](d_out)
