"""Delayed scaling: scales from the largest magnitudes of earlier steps (arXiv:2209.05433, section 3.2).

The state is a window of the last steps: of each layer and tensor of a quantized matmul, the largest magnitude in the
step, over all microbatches and ranks. A step scales by the largest of the window. Its own magnitudes leave its backward
(`jaxpar.runtime.observed`), and replace the oldest entry. The window has the layers in the order of the
model and is the same on all ranks, so that a checkpoint is restored on any mesh.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, PyTree

from jaxpar.mesh.parameters import Weights
from jaxpar.precision.matmul import SCALES
from jaxpar.precision.recipe import E4M3, LARGEST, Recipe
from jaxpar.precision.scale import scale_of
from jaxpar.runtime.carried import REPLICATED, Carried, Limit, Outcome, StepWeights, select_tree
from jaxpar.runtime.observed import Maxima

type History = Float[Array, "steps layers tensors"]
"""The largest magnitudes, of the last step first; 0 where there was none."""


def is_gradient(tensor: str) -> bool:
    """Whether a tensor is the gradient of an output, by its name."""
    return tensor.endswith(".gradient")


def scales_of(history: History, tensors: Sequence[str], recipe: Recipe, tokens: int) -> Float[Array, "layers tensors"]:
    """The scales of a step. Where nothing has been seen they are 1, and of gradients about 1 / `tokens`, because the
    gradient of a mean over these tokens has that magnitude."""
    largest = history.max(axis=0)
    gradients = np.array([is_gradient(name) for name in tensors])
    first = np.where(gradients, 2.0 ** -round(math.log2(tokens)), 1.0).astype(np.float32)
    scales = jnp.where(gradients, scale_of(largest, recipe.gradient), scale_of(largest, E4M3))
    return jnp.where(largest > 0, scales, first)


class MatmulStatistics(NamedTuple):
    """The statistics of a step's quantized matmuls."""

    magnitudes: Float[Array, "layers tensors"]
    """The largest magnitude of each tensor, over microbatches and ranks."""
    scales: Float[Array, "layers tensors"]
    """The scales that the tensors were divided by."""


@dataclass(frozen=True)
class QuantizedMatmuls(Carried[History | None]):
    """Quantized matmuls whose scales come from the tensors themselves: they hand nothing on."""

    quantize: Callable[..., StepWeights] | None
    """`quantized_weights` of a layout, but for the weights and the scales; None where matrices are quantized with each
    use."""
    name = "matmuls"
    title = "quantized matmuls"

    @property
    def converts(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.quantize is not None

    def init(self) -> History | None:
        return None

    def partitions(self) -> PyTree[PartitionSpec]:
        return None

    def weights(self, master: Weights, shared: dict[str, PyTree[Array]]) -> StepWeights:
        assert self.quantize is not None, "matrices are quantized once per step"
        return self.quantize(master, scales=shared.get(SCALES))


@dataclass(frozen=True)
class ScaleHistory(QuantizedMatmuls):
    """The window of magnitudes that scales are computed from."""

    recipe: Recipe
    tensors: tuple[str, ...]
    """The tensors of a layer."""
    layers: int
    steps: int
    """Steps in the window."""
    tokens: int
    """Tokens of a batch."""
    title = "window of magnitudes (precision.matmul: fp8_delayed)"
    limits = MappingProxyType(
        {"matmul_reach": Limit(2.0, "times what its numbers of 8 bits reach: values were cut off (docs/warnings.md)")}
    )

    @property
    def saved_as(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return json.dumps(self.tensors)

    def init(self) -> History:
        return jnp.zeros((self.steps, self.layers, len(self.tensors)), jnp.float32)

    def partitions(self) -> PyTree[PartitionSpec]:
        return REPLICATED

    def scales(self, state: History) -> Float[Array, "layers tensors"]:
        """The scales of a step."""
        return scales_of(state, self.tensors, self.recipe, self.tokens)

    def shared(self, state: History) -> dict[str, PyTree[Array]]:
        return {SCALES: self.scales(state)}

    def accepts(self, observed: Maxima) -> Bool[Array, ""]:
        # An infinite input would be saturated without a trace.
        return jnp.isfinite(observed).all()

    def next(self, state: History, outcome: Outcome) -> History:
        newest = outcome.observed[None]
        return select_tree(outcome.finite, jnp.concatenate([newest, state[:-1]]), state)

    def metrics(self, state: History, outcome: Outcome) -> MatmulStatistics:
        return MatmulStatistics(outcome.observed, self.scales(state))

    def record(self, metrics: MatmulStatistics) -> dict[str, object]:
        """Metrics `matmul_magnitudes` and `matmul_scales` by tensor of each layer, and `matmul_reach` by layer: the
        largest magnitude as a share of the largest number that its codes reach; above 1, it was cut off."""
        magnitudes, scales = (np.asarray(one, np.float64) for one in metrics)
        if not np.isfinite(magnitudes).all():
            return {}
        largest = np.array([LARGEST[self.recipe.gradient if is_gradient(name) else E4M3] for name in self.tensors])
        reach = (magnitudes / (scales * largest)).max(axis=1)
        by_tensor = lambda values: dict(zip(self.tensors, values.T.tolist(), strict=True))
        return {
            "matmul_magnitudes": by_tensor(magnitudes), "matmul_scales": by_tensor(scales),
            "matmul_reach": {str(layer): float(value) for layer, value in enumerate(reach) if value},
        }  # fmt: skip
