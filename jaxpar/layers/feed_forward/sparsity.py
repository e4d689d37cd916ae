"""Sparse gates: what lies above a quantile of the normal distribution with their mean and deviation."""

from __future__ import annotations

from statistics import NormalDist

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxpar.mesh.collectives import sum_over_heads
from jaxpar.runtime.passes import ALWAYS_SAVED

TINY = 1e-30
"""The least variance whose root is taken, which has no derivative at 0."""


def above_quantile(gate: Float[Array, "batch seq mlp"], share: float) -> Float[Array, "batch seq mlp"]:
    """`max(gate - cutoff, 0)`, where the cutoff of a token is above `share` of a normal distribution with the mean and
    the deviation of its gates. Tensor ranks, which have some of the gates each, add up two numbers of a token."""
    x = gate.astype(jnp.float32)
    width = x.shape[-1] * lax.axis_size("tensor")
    moments = sum_over_heads(jnp.stack([x.sum(axis=-1), jnp.square(x).sum(axis=-1)])) / width
    mean, square = checkpoint_name(moments, ALWAYS_SAVED)
    deviation = jnp.sqrt(jnp.maximum(square - jnp.square(mean), TINY))
    cutoff = mean + deviation * NormalDist().inv_cdf(share)
    return jnp.maximum(x - cutoff[..., None], 0).astype(gate.dtype)
