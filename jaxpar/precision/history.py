"""Delayed scaling: scales from the largest magnitudes of earlier steps (arXiv:2209.05433, section 3.2).

The state is a window of the last steps: of each layer and tensor of a quantised matmul, the largest magnitude that the
step saw, over all microbatches and ranks. A step scales by the largest of the window. What it sees itself leaves its
backward (`jaxpar.model.loop.layer_loop`), and replaces the oldest entry. The window has the layers in the order of the
model and is the same on all ranks, so that a checkpoint is restored on any mesh.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxpar.precision.matmul import SCALES
from jaxpar.precision.recipe import E4M3, LARGEST, Recipe
from jaxpar.precision.scale import scale_of
from jaxpar.precision.seen import Seen
from jaxpar.runtime.carried import Carried, Outcome, where

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


def reach(magnitude: float, scale: float, tensor: str, recipe: Recipe) -> float:
    """A magnitude as a share of the largest number that a tensor's codes reach with this scale: above 1, it was cut
    off."""
    return magnitude / (scale * LARGEST[recipe.gradient if is_gradient(tensor) else E4M3])


class MatmulStatistics(NamedTuple):
    """The statistics of a step's quantised matmuls."""

    magnitudes: Float[Array, "layers tensors"]
    """The largest magnitude of each tensor, over microbatches and ranks."""
    scales: Float[Array, "layers tensors"] | None
    """The scales that the tensors were divided by, under delayed scaling."""
    counts: Float[Array, "layers tensors counts"] | None
    """`jaxpar.precision.seen.COUNTS` of each tensor, with `precision.matmul_counts`."""


@dataclass(frozen=True)
class ObservedMatmuls(Carried[None]):
    """Statistics of quantised matmuls whose scales do not come from earlier steps: there is nothing to hand on."""

    name = "matmuls"
    title = "statistics of quantised matmuls"
    reports = True

    def init(self) -> None:
        return None

    def metrics(self, state: None, outcome: Outcome) -> MatmulStatistics:
        del state
        return MatmulStatistics(outcome.observed.largest, None, outcome.observed.counts)


@dataclass(frozen=True)
class DelayedScales(Carried[History]):
    """The window of magnitudes that scales are computed from."""

    recipe: Recipe
    tensors: tuple[str, ...]
    """The tensors of a layer."""
    layers: int
    steps: int
    """Steps in the window."""
    tokens: int
    """Tokens of a batch."""
    name = "matmuls"
    title = "window of magnitudes (precision.matmul: fp8_delayed)"
    reports = True

    @property
    def saved_as(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return json.dumps(self.tensors)

    def init(self) -> History:
        return jnp.zeros((self.steps, self.layers, len(self.tensors)), jnp.float32)

    def scales(self, state: History) -> Float[Array, "layers tensors"]:
        """The scales of a step."""
        return scales_of(state, self.tensors, self.recipe, self.tokens)

    def shared(self, state: History) -> dict[str, Any]:
        return {SCALES: self.scales(state)}

    def accepts(self, observed: Seen) -> Bool[Array, ""]:
        # An infinite input would be saturated without a trace.
        assert observed.largest is not None, "layers observe magnitudes under delayed scaling"
        return jnp.isfinite(observed.largest).all()

    def next(self, state: History, outcome: Outcome) -> History:
        newest = outcome.observed.largest[None]
        return where(outcome.finite, jnp.concatenate([newest, state[:-1]]), state)

    def metrics(self, state: History, outcome: Outcome) -> MatmulStatistics:
        return MatmulStatistics(outcome.observed.largest, self.scales(state), outcome.observed.counts)
