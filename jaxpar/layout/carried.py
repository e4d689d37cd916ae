"""The features with state that steps hand on, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.layers.matmul_formats import tensor_names
from jaxpar.mesh.parameters import Specs
from jaxpar.mesh.placements import Placements
from jaxpar.precision.history import DelayedScales, ObservedMatmuls
from jaxpar.precision.loss_scale import loss_scaling
from jaxpar.precision.recipe import recipe_of
from jaxpar.runtime.carried import Carried


class CarriedRequest(NamedTuple):
    """What an entry of the registry decides by."""

    config: Config
    plan: Plan
    trained: Specs
    """The specs of the trained weights."""
    placements: Placements


def _matmuls(request: CarriedRequest) -> Carried[Any] | None:
    config, recipe = request.config, recipe_of(request.config.precision)
    if recipe is None:
        return None
    if not recipe.delayed:
        return ObservedMatmuls() if config.precision.matmul_counts else None
    tokens = config.data.batch_size * config.data.sequence_length
    steps = config.precision.matmul_history
    return DelayedScales(recipe, tensor_names(config), config.model.layers, steps, tokens)


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
