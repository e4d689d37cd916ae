"""The state that steps hand on under `precision.matmul`."""

from __future__ import annotations

from functools import partial
from typing import Any

from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.layers.matmul_formats import tensor_names
from jaxpar.layout.choices.matmul import quantizes_once
from jaxpar.layout.once_quantized import once_quantized_matrices
from jaxpar.memory.streaming import map_rows
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.mesh.placements import Placements
from jaxpar.precision.history import QuantizedMatmuls, ScaleHistory
from jaxpar.precision.quantized_weights import quantized_weights
from jaxpar.precision.recipe import recipe_of
from jaxpar.runtime.carried import Carried


def carried(config: Config, plan: Plan, placements: Placements, order: LayerOrder) -> Carried[Any]:
    """The scales of earlier steps, and matrices quantized once a step."""
    recipe = recipe_of(config.precision)
    assert recipe is not None, "quantized matmuls"
    names, layers = tensor_names(config), config.model.layers
    quantize = None
    if quantizes_once(plan):
        quantize = partial(
            quantized_weights, matrices=once_quantized_matrices(config, plan, placements, order),
            shape=(layers, len(names)), storage=placements.storage.dtype, by_rows=map_rows,
        )  # fmt: skip
    if not recipe.from_history:
        return QuantizedMatmuls(quantize)
    tokens = config.data.batch_size * config.data.sequence_length
    return ScaleHistory(quantize, recipe, names, layers, config.precision.matmul_options.history, tokens)
