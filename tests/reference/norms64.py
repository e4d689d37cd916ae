"""The norms of the float64 reference."""

import jax.numpy as jnp
from jaxtyping import Array, Float64

from tests.reference.options import Options
from tests.reference.tree import Tree


def rms_norm(
    x: Float64[Array, "... width"], scale: Float64[Array, " width"], epsilon: float
) -> Float64[Array, "... width"]:
    """Root mean square normalisation (Zhang & Sennrich 2019, eq. 4)."""
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale


def layer_norm(x: Float64[Array, "... width"], weights: Tree, epsilon: float) -> Float64[Array, "... width"]:
    """Layer normalisation (Ba et al. 2016, eq. 4) with the biased variance, and its weights, if any."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + epsilon) * weights.get("scale", 1.0) + weights.get("bias", 0.0)


def norm(x: Float64[Array, "... width"], tree: Tree, name: str, options: Options) -> Float64[Array, "... width"]:
    """The normalisation that `options` name, with the weights called `name` in `tree`; OLMo 1 has none."""
    weights = tree.get(name, {})
    if options["norm"].endswith("layernorm"):
        count = {"weightless_layernorm": 0, "unbiased_layernorm": 1, "layernorm": 2}[options["norm"]]
        assert len(weights.keys() & {"scale", "bias"}) == count
        return layer_norm(x, weights, options["norm_epsilon"])
    return rms_norm(x, factors(weights["scale"], options), options["norm_epsilon"])


def factors(scale: Float64[Array, "*dims"], options: Options) -> Float64[Array, "*dims"]:
    """The factors of a root mean square norm; Gemma stores their difference from 1."""
    return 1 + scale if options["norm"] == "zero_centered_rmsnorm" else scale


def norm_heads(
    x: Float64[Array, "batch seq heads width"], scale: Float64[Array, "..."], options: Options
) -> Float64[Array, "batch seq heads width"]:
    """Normalised queries or keys: each head (Qwen3, Gemma 3), or the heads side by side as one vector (OLMo 2)."""
    scale = factors(scale, options)
    if options["qk_norm"] == "projection":
        wide = rms_norm(x.reshape(*x.shape[:2], -1), scale.reshape(-1), options["norm_epsilon"])
        return wide.reshape(x.shape)
    if options["qk_norm"] == "layernorm":  # a scale for each head (Command R+)
        return layer_norm(x, {"scale": scale}, options["norm_epsilon"])
    return rms_norm(x, scale, options["norm_epsilon"])
