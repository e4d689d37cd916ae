"""Rotary position embeddings (arXiv:2104.09864) in Llama's split-half form, with linear, Llama 3 and YaRN scaling."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpar.config.counting import yarn_magnitude
from jaxpar.config.schema import ModelConfig


def frequencies(model: ModelConfig, rotary_dim: int) -> np.ndarray:
    """Rotation per position of each pair of dims that rotate, [rotary_dim / 2], float64.

    `linear` divides every frequency by the factor (arXiv:2306.15595). `llama3` divides those whose wavelength is longer
    than `rope_original_length / rope_low_frequency`, keeps those shorter than `... / rope_high_frequency`, and
    interpolates between (Llama 3.1, as published with its weights). `yarn`: see `_yarn`.
    """
    base = model.rope_base ** -(np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    if model.rope_scaling == "linear":
        return base / model.rope_factor
    if model.rope_scaling == "llama3":
        wavelength = 2 * math.pi / base
        low, high = model.rope_low_frequency, model.rope_high_frequency
        smooth = np.clip((model.rope_original_length / wavelength - low) / (high - low), 0.0, 1.0)
        return base * (smooth + (1 - smooth) / model.rope_factor)
    return _yarn(model, base) if model.rope_scaling == "yarn" else base


def _yarn(model: ModelConfig, base: np.ndarray) -> np.ndarray:
    """YaRN (arXiv:2309.00071, section 3.2): pairs that turn more than `rope_beta_fast` times within the original length
    are kept, those that turn less than `rope_beta_slow` times are divided by the factor; linear in the number of the
    pair between them, from and to a whole number if `rope_truncate`."""
    pairs = len(base)

    def pair_of(turns: float) -> float:
        return pairs * math.log(model.rope_original_length / (turns * 2 * math.pi)) / math.log(model.rope_base)

    first, last = pair_of(model.rope_beta_fast), pair_of(model.rope_beta_slow)
    if model.rope_truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    stretched = np.clip((np.arange(pairs) - first) / (last - first if last != first else 1e-3), 0.0, 1.0)
    return base * (1 - stretched + stretched / model.rope_factor)


def rotary_magnitude(model: ModelConfig) -> float:
    """What cosines and sines are multiplied with."""
    if model.rope_scaling != "yarn":
        return 1.0
    if model.rope_attention_factor is not None:
        return model.rope_attention_factor
    if model.rope_mscale and model.rope_mscale_all_dim:
        above, below = model.rope_mscale, model.rope_mscale_all_dim
        return yarn_magnitude(model.rope_factor, above) / yarn_magnitude(model.rope_factor, below)
    return yarn_magnitude(model.rope_factor)


def rotary_tables(
    positions: Int[Array, "batch seq"], frequencies: Float[np.ndarray, " half"], magnitude: float = 1.0
) -> tuple[Float[Array, "batch seq half"], Float[Array, "batch seq half"]]:
    """Cosines and sines of every position's angles, float32, from radians per position, times a magnitude."""
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return (cos, sin) if magnitude == 1 else (cos * magnitude, sin * magnitude)


def rotate(
    x: Float[Array, "batch seq heads head_dim"],
    cos: Float[Array, "batch seq half"],
    sin: Float[Array, "batch seq half"],
) -> Float[Array, "batch seq heads head_dim"]:
    """Rotate dims (i, i + half) of each head by the position's i-th angle, in float32; dims from 2 half on stay."""
    half = cos.shape[-1]
    if 2 * half < x.shape[-1]:
        return jnp.concatenate([rotate(x[..., : 2 * half], cos, sin), x[..., 2 * half :]], axis=-1)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
