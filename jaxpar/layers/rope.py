"""Rotary position embeddings (arXiv:2104.09864) in Llama's split-half form, with the scalings of `model.rope`."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpar.config.counting import yarn_magnitude
from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.config.schema import ModelConfig


def frequencies(model: ModelConfig, rotary_dim: int, length: int = 0) -> np.ndarray:
    """Rotation per position of each pair of dims that rotate, [rotary_dim / 2], float64.

    `linear` divides every frequency by the factor (arXiv:2306.15595). `llama3` divides those whose wavelength is longer
    than `original_length / low_frequency`, keeps those shorter than `... / high_frequency`, and
    interpolates between (Llama 3.1, as published with its weights). `yarn`: see `_yarn`. `longrope` divides each by
    its factor, from one list for rows of up to `original_length` tokens and one for longer rows
    (arXiv:2402.13753); `length` is that of the rows. `proportional` does not rotate pairs behind the first ones.
    """
    rope = model.rope
    base = rope.base ** -(np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    if rope.scaling == "proportional":
        return np.where(np.arange(len(base)) < int(rope.partial * rotary_dim) // 2, base, 0.0)
    if rope.scaling == "linear":
        return base / rope.factor
    if rope.scaling == "llama3":
        wavelength = 2 * math.pi / base
        low, high = rope.low_frequency, rope.high_frequency
        smooth = np.clip((rope.original_length / wavelength - low) / (high - low), 0.0, 1.0)
        return base * (smooth + (1 - smooth) / rope.factor)
    if rope.scaling == "longrope":
        return base / np.asarray(rope.long_factors if length > rope.original_length else rope.short_factors)
    return _yarn(rope, base) if rope.scaling == "yarn" else base


def _yarn(rope: RopeConfig, base: np.ndarray) -> np.ndarray:
    """YaRN (arXiv:2309.00071, section 3.2): pairs that turn more than `beta_fast` times within the original length
    are kept, those that turn less than `beta_slow` times are divided by the factor; linear in the number of the
    pair between them, from and to a whole number if `truncate`."""
    pairs = len(base)

    def pair_of(turns: float) -> float:
        return pairs * math.log(rope.original_length / (turns * 2 * math.pi)) / math.log(rope.base)

    first, last = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    stretched = np.clip((np.arange(pairs) - first) / (last - first if last != first else 1e-3), 0.0, 1.0)
    return base * (1 - stretched + stretched / rope.factor)


def rotary_magnitude(model: ModelConfig) -> float:
    """The factor of cosines and sines."""
    rope = model.rope
    if rope.scaling not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.scaling == "longrope":
        return math.sqrt(1 + math.log(max(rope.factor, 1.0)) / math.log(rope.original_length))
    if rope.mscale and rope.mscale_all_dim:
        above, below = rope.mscale, rope.mscale_all_dim
        return yarn_magnitude(rope.factor, above) / yarn_magnitude(rope.factor, below)
    return yarn_magnitude(rope.factor)


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
