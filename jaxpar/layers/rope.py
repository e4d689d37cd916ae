"""Rotary position embeddings (arXiv:2104.09864) in Llama's split-half form, with linear and Llama 3 scaling."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpar.config.schema import ModelConfig


def frequencies(model: ModelConfig, head_dim: int) -> np.ndarray:
    """Rotation per position of each pair of dims, [head_dim / 2], float64.

    `linear` divides every frequency by the factor (arXiv:2306.15595). `llama3` divides those whose wavelength is longer
    than `rope_original_length / rope_low_frequency`, keeps those shorter than `... / rope_high_frequency`, and
    interpolates between (Llama 3.1, as published with its weights).
    """
    base = model.rope_base ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if model.rope_scaling == "linear":
        return base / model.rope_factor
    if model.rope_scaling == "llama3":
        wavelength = 2 * math.pi / base
        low, high = model.rope_low_frequency, model.rope_high_frequency
        smooth = np.clip((model.rope_original_length / wavelength - low) / (high - low), 0.0, 1.0)
        return base * (smooth + (1 - smooth) / model.rope_factor)
    return base


def rotary_tables(
    positions: Int[Array, "batch seq"], frequencies: Float[np.ndarray, " half"]
) -> tuple[Float[Array, "batch seq half"], Float[Array, "batch seq half"]]:
    """Cosines and sines of every position's angles, float32, from radians per position."""
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "batch seq heads head_dim"],
    cos: Float[Array, "batch seq half"],
    sin: Float[Array, "batch seq half"],
) -> Float[Array, "batch seq heads head_dim"]:
    """Rotate dims (i, i + head_dim / 2) of each head by the position's i-th angle, in float32."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
