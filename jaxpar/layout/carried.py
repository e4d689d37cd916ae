"""The features with state that steps hand on, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.layers.matmul_formats import exact_layers, tensor_names
from jaxpar.layout.choices.matmul import codes_once
from jaxpar.layout.coded_matrices import coded_matrices
from jaxpar.memory.streaming import of_rows
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.mesh.placements import Placements
from jaxpar.precision.history import QuantisedMatmuls, ScaleHistory
from jaxpar.precision.loss_scale import loss_scaling
from jaxpar.precision.recipe import recipe_of
from jaxpar.precision.weight_codes import coded_weights
from jaxpar.runtime.carried import Carried


class CarriedRequest(NamedTuple):
    """What an entry of the registry decides by."""

    config: Config
    plan: Plan
    placements: Placements
    order: LayerOrder


def _matmuls(request: CarriedRequest) -> Carried[Any] | None:
    config, recipe = request.config, recipe_of(request.config.precision)
    if recipe is None:
        return None
    names, layers = tensor_names(config), config.model.layers
    codes = None
    if codes_once(request.plan):
        codes = partial(
            coded_weights, matrices=coded_matrices(*request), exact_layers=exact_layers(config),
            shape=(layers, len(names)), storage=request.placements.storage.dtype, by_rows=of_rows,
        )  # fmt: skip
    if not recipe.from_history:
        return QuantisedMatmuls(codes)
    tokens = config.data.batch_size * config.data.sequence_length
    return ScaleHistory(codes, recipe, names, layers, config.precision.matmul_options.history, tokens)


CARRIED: list[Callable[[CarriedRequest], Carried[Any] | None]] = [
    lambda request: loss_scaling(request.config.precision),
    _matmuls,
]
"""One function for each feature; it returns None where a run does not have it. Others append theirs."""


def carried_of(request: CarriedRequest) -> dict[str, Carried[Any]]:
    """The carried state of a run, by name."""
    kinds = [kind for make in CARRIED if (kind := make(request)) is not None]
    assert len({kind.name for kind in kinds}) == len(kinds), "carried state has names of its own"
    return {kind.name: kind for kind in kinds}
