"""Inputs of layers in float64 (Gemma 3n and 4), written from their published description."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float64, Int

from tests.reference import feed_forward64, norms64
from tests.reference.options import Options
from tests.reference.tree import Tree


def inputs(
    embeddings: Float64[Array, "batch seq embed"], tokens: Int[Array, "batch seq"], weights: Tree, options: Options
) -> Float64[Array, "batch seq layer width"]:
    """The inputs of all layers, from scaled embeddings and the weights of the model's input."""
    sizes = dict(options["per_layer_embeddings"])
    width, rows = sizes["width"], sizes.get("vocab") or options["vocab"]
    shape = (*tokens.shape, options["layers"], width)
    stored = weights["per_layer_tokens"][jnp.where(tokens < rows, tokens, 0)].reshape(shape) * math.sqrt(width)
    made = (embeddings @ weights["per_layer_projection"].T / math.sqrt(options["embed"])).reshape(shape)
    scale = norms64.factors(weights["per_layer_norm"], options)
    return (norms64.rms_norm(made, scale, options["norm_epsilon"]) + stored) / math.sqrt(2)


def mixed(
    streams: list[Array], vectors: Float64[Array, "batch seq width"], weights: Tree, options: Options
) -> list[Array]:
    """The residual streams with what a layer's third block makes of the layer's inputs. Of several, the scaled active
    one is mixed with the inputs, and all but the first change (Gemma 3n)."""
    if not options["altup"]:
        return [streams[0] + made(streams[0], vectors, weights, options)]
    active = streams[dict(options["altup"]).get("active", 0)] * weights["altup"]["output_scale"]
    return [streams[0], *(x + made(active, vectors, weights, options) for x in streams[1:])]


def made(
    x: Float64[Array, "batch seq embed"], vectors: Float64[Array, "batch seq width"], weights: Tree, options: Options
) -> Float64[Array, "batch seq embed"]:
    """The output of the block for a stream and the inputs."""
    of_block = weights["per_layer"]
    hidden = feed_forward64.gelu(x @ of_block["per_layer_gate"]) * vectors
    return norms64.norm(hidden @ of_block["per_layer_projection"], weights, "post_per_layer_norm", options)
