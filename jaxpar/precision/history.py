"""Delayed scaling: scales from the largest magnitudes of earlier steps (arXiv:2209.05433, section 3.2).

The state is a window of the last steps: of each layer and tensor of a quantised matmul, the largest magnitude that the
step saw, over all microbatches and ranks. A step scales by the largest of the window. What it sees itself leaves its
backward (`jaxpar.model.loop.layer_loop`), and replaces the oldest entry. The window has the layers in the order of the
model and is the same on all ranks, so that a checkpoint is restored on any mesh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxpar.precision.recipe import E4M3, LARGEST, Recipe
from jaxpar.precision.scale import scale_of

type History = Float[Array, "steps layers tensors"]
"""The largest magnitudes, of the last step first; 0 where there was none."""


def is_gradient(tensor: str) -> bool:
    """Whether a tensor is the gradient of an output, by its name."""
    return tensor.endswith(".gradient")


def scales_of(history: History, tensors: Sequence[str], recipe: Recipe, tokens: int) -> Float[Array, "layers tensors"]:
    """The scales of a step. Where nothing has been seen they are 1, and of gradients about 1 / `tokens`, because the
    gradient of a mean over so many tokens has that magnitude."""
    largest = history.max(axis=0)
    found = []
    for place, name in enumerate(tensors):
        form = recipe.gradient if is_gradient(name) else E4M3
        first = 2.0 ** -round(math.log2(tokens)) if is_gradient(name) else 1.0
        own = largest[:, place]
        found.append(jnp.where(own > 0, scale_of(own, form, recipe.margin), first))
    return jnp.stack(found, axis=1)


def next_history(history: History, seen: Float[Array, "layers tensors"], finite: Bool[Array, ""]) -> History:
    """The history after a step that saw these magnitudes; after one that was skipped, the same."""
    return jnp.where(finite, jnp.concatenate([seen[None], history[:-1]]), history)


def reach(magnitude: float, scale: float, tensor: str, recipe: Recipe) -> float:
    """A magnitude as a share of the largest number that a tensor's codes reach with this scale: above 1, it was cut
    off."""
    return magnitude / (scale * LARGEST[recipe.gradient if is_gradient(tensor) else E4M3])


def no_history(steps: int, layers: int, tensors: int) -> History:
    """The history before the first step."""
    return jnp.zeros((steps, layers, tensors), jnp.float32)
