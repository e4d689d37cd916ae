"""What a logged step reports of FP8 matmuls, by the names of `StepRecord`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxpar.config import Config
from jaxpar.layers.matmul_formats import exact_layers, tensor_names
from jaxpar.precision.history import DelayedScales, MatmulStatistics, is_gradient, reach
from jaxpar.precision.recipe import E4M3, Recipe, recipe_of
from jaxpar.precision.scale import scale_of
from jaxpar.precision.seen import COUNTS
from jaxpar.training.step.forward_backward import StepMetrics


def matmul_metrics(config: Config, metrics: StepMetrics) -> dict[str, Any]:
    """Magnitudes and, where the step has them, scales, reach and shares; nothing of a step that was not finite."""
    statistics: MatmulStatistics | None = metrics.carried.get(DelayedScales.name)
    if statistics is None:
        return {}
    magnitudes = np.asarray(statistics.magnitudes, np.float64)
    if not np.isfinite(magnitudes).all():
        return {}
    tensors, layers = tensor_names(config), range(*exact_layers(config))
    by_tensor = lambda values: {name: values[:, place].tolist() for place, name in enumerate(tensors)}
    found: dict[str, Any] = {"matmul_magnitudes": by_tensor(magnitudes)}
    recipe = recipe_of(config.precision)
    assert recipe is not None, "matmuls are quantised"
    if statistics.scales is None and recipe.tiles is None:
        found["matmul_scales"] = by_tensor(own_scales(magnitudes, tensors, recipe))
    if statistics.scales is not None:
        scales = np.asarray(statistics.scales, np.float64)
        of = lambda layer: (
            reach(float(magnitudes[layer, place]), float(scales[layer, place]), name, recipe)
            for place, name in enumerate(tensors)
        )
        found |= {
            "matmul_scales": by_tensor(scales),
            "matmul_reach": {str(layer): max(of(layer)) for layer in layers},
        }
    if statistics.counts is None:
        return found
    counts = np.asarray(statistics.counts, np.float64)
    for name, values in shares_of(counts).items():
        found[f"matmul_{name}"] = by_tensor(values)
        found[f"matmul_most_{name}"] = {str(layer): float(values[layer].max()) for layer in layers}
    return found


def own_scales(
    magnitudes: Float[np.ndarray, "layers tensors"], tensors: Sequence[str], recipe: Recipe
) -> Float[np.ndarray, "layers tensors"]:
    """The scales of tensors with such largest magnitudes: the largest of a step, as a larger magnitude has no smaller
    scale."""
    largest = jnp.asarray(magnitudes, jnp.float32)
    of_forms = (np.asarray(scale_of(largest, form, recipe.margin)) for form in (recipe.gradient, E4M3))
    return np.where([is_gradient(name) for name in tensors], *of_forms)


def shares_of(counts: Float[np.ndarray, "layers tensors counts"]) -> dict[str, Float[np.ndarray, "layers tensors"]]:
    """Of `jaxpar.precision.seen.COUNTS`, each but the first as a share of the first; 0 where nothing was quantised."""
    numbers = np.maximum(counts[..., 0], 1)
    return {name: counts[..., place] / numbers for place, name in enumerate(COUNTS) if place}
