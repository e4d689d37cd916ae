"""Rotary embeddings in float64, from their papers; no code is shared with jaxpar."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Int

from tests.reference.options import Options


def rotary_frequencies(options: Options, length: int) -> np.ndarray:
    """Radians per position of each pair of the D dims of a head that rotate, [D / 2] (Su et al. 2021, sec. 3.2.2).

    They are stretched as asked. `llama3`: a wavelength above original/low is stretched by the full factor, one below
    original/high stays, and between them the frequency is interpolated linearly in original/wavelength. `yarn`: the
    pair d that turns `beta` times within the original length solves `original * base^(-2 d / D) = 2 pi beta` (Peng et
    al. 2023, sec. 3.2); pairs before that of the fast one stay, those behind that of the slow one are stretched.
    `longrope`: each pair has a factor, which is another in rows of more than the original `length` (Ding et al. 2024).
    """
    if options["rope_scaling"] == "proportional":  # Gemma 4: the first pairs of all, and the others stand still
        half, rotating = options["head_dim"] // 2, int(options["head_dim"] * options["rope_partial"]) // 2
        return np.array([options["rope_base"] ** (-i / half) * (i < rotating) for i in range(half)])
    half = int(options["head_dim"] * options["rope_partial"]) // 2
    plain = [options["rope_base"] ** (-i / half) for i in range(half)]
    if options["rope_scaling"] == "linear":
        return np.array([frequency / options["rope_factor"] for frequency in plain])
    if options["rope_scaling"] == "yarn":
        turns = options["rope_original_length"] / (2 * math.pi)
        fast = half * math.log(turns / options["rope_beta_fast"], options["rope_base"])
        slow = half * math.log(turns / options["rope_beta_slow"], options["rope_base"])
        if options["rope_truncate"]:
            fast, slow = math.floor(fast), math.ceil(slow)
        first, last = max(0, fast), min(2 * half - 1, slow)
        parts = np.clip((np.arange(half) - first) / max(1e-3, last - first), 0.0, 1.0)
        return np.array(plain) * (1 - parts + parts / options["rope_factor"])
    if options["rope_scaling"] == "longrope":
        factors = options["rope_long_factors" if length > options["rope_original_length"] else "rope_short_factors"]
        return np.array(plain) / np.array(factors)
    if options["rope_scaling"] != "llama3":
        return np.array(plain)
    low, high = options["rope_low_frequency"], options["rope_high_frequency"]
    scaled = []
    for frequency in plain:
        turns = options["rope_original_length"] * frequency / (2 * math.pi)  # original length / wavelength
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        scaled.append(share * frequency + (1 - share) * frequency / options["rope_factor"])
    return np.array(scaled)


def rotate(
    x: Float64[Array, "batch seq heads width"], positions: Int[Array, "batch seq"], options: Options
) -> Float64[Array, "batch seq heads width"]:
    """Rotary embedding of the pairs (i, i + D/2) of the first D dims, Llama's split-half form; the others stay."""
    angle = positions[:, :, None, None] * jnp.asarray(rotary_frequencies(options, positions.shape[1]))
    x, still = jnp.split(x, [2 * angle.shape[-1]], axis=-1)
    if options["rope_scaling"] == "yarn":
        stated, ratio = options["rope_attention_factor"], yarn_magnitude(options, 1.0)
        if options["rope_mscale"] and options["rope_mscale_all_dim"]:
            above, below = (yarn_magnitude(options, options[name]) for name in ("rope_mscale", "rope_mscale_all_dim"))
            ratio = above / below
        x = x * (ratio if stated is None else stated)
    if options["rope_scaling"] == "longrope":
        grows = math.log(options["rope_factor"]) / math.log(options["rope_original_length"])
        enlarged = options["rope_attention_factor"]
        x = x * (math.sqrt(1 + grows) if enlarged is None else enlarged)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate(
        [first * jnp.cos(angle) - second * jnp.sin(angle), second * jnp.cos(angle) + first * jnp.sin(angle), still],
        axis=-1,
    )


def yarn_magnitude(options: Options, weight: float) -> float:
    """How much vectors grow by YaRN's factor (Peng et al. 2023, eq. 22), with a weight as in DeepSeek's code."""
    return 0.1 * weight * math.log(options["rope_factor"]) + 1
