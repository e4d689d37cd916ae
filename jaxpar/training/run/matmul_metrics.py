"""What a logged step reports of FP8 matmuls, by the names of `StepRecord`."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from jaxpar.config import Config
from jaxpar.layers.matmul_formats import exact_layers, tensor_names
from jaxpar.precision.history import reach
from jaxpar.precision.recipe import recipe_of
from jaxpar.precision.seen import COUNTS
from jaxpar.training.step.forward_backward import StepMetrics


def matmul_metrics(config: Config, metrics: StepMetrics) -> dict[str, Any]:
    """Magnitudes and, where the step has them, scales, reach and shares; nothing of a step that was not finite."""
    if metrics.magnitudes is None:
        return {}
    magnitudes = np.asarray(metrics.magnitudes, np.float64)
    if not np.isfinite(magnitudes).all():
        return {}
    tensors, layers = tensor_names(config), range(*exact_layers(config))
    # Without a history routed experts are not looked at: no numbers are better than zeros.
    seen = [place for place in range(len(tensors)) if metrics.scales is not None or magnitudes[:, place].any()]
    by_tensor = lambda values: {tensors[place]: values[:, place].tolist() for place in seen}
    found: dict[str, Any] = {"matmul_magnitudes": by_tensor(magnitudes)}
    if metrics.scales is not None:
        recipe, scales = recipe_of(config.precision), np.asarray(metrics.scales, np.float64)
        assert recipe is not None, "matmuls are quantised"
        of = lambda layer: (
            reach(float(magnitudes[layer, place]), float(scales[layer, place]), name, recipe)
            for place, name in enumerate(tensors)
        )
        found |= {
            "matmul_scales": by_tensor(scales),
            "matmul_reach": {str(layer): max(of(layer)) for layer in layers},
        }
    if metrics.counts is None:
        return found
    counts = np.asarray(metrics.counts, np.float64)
    for name, values in shares_of(counts).items():
        counted = [place for place in range(len(tensors)) if counts[:, place, 0].any()]
        found[f"matmul_{name}"] = {tensors[place]: values[:, place].tolist() for place in counted}
        found[f"matmul_most_{name}"] = {str(layer): float(values[layer].max()) for layer in layers}
    return found


def shares_of(counts: Float[np.ndarray, "layers tensors counts"]) -> dict[str, Float[np.ndarray, "layers tensors"]]:
    """Of `jaxpar.precision.seen.COUNTS`, each but the first as a share of the first; 0 where nothing was quantised."""
    numbers = np.maximum(counts[..., 0], 1)
    return {name: counts[..., place] / numbers for place, name in enumerate(COUNTS) if place}
