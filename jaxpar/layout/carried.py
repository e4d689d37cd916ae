"""The features with state that steps hand on, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxpar.config import Config
from jaxpar.config.parts import feature
from jaxpar.config.plan import Plan
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.mesh.placements import Placements
from jaxpar.runtime.carried import Carried
from jaxpar.runtime.loss_scale import loss_scaling


class CarriedRequest(NamedTuple):
    """Facts by which an entry of the registry decides whether its state is carried."""

    config: Config
    plan: Plan
    placements: Placements
    order: LayerOrder


CARRIED: list[Callable[[CarriedRequest], Carried[Any] | None]] = [
    lambda request: loss_scaling(request.config.precision),
    lambda request: feature("quantised_state")(*request) if request.config.precision.matmul else None,
]
"""One function for each feature; it returns None where a run does not have it. Others append theirs."""


def carried_of(request: CarriedRequest) -> dict[str, Carried[Any]]:
    """The carried state of a run, by name."""
    kinds = [kind for make in CARRIED if (kind := make(request)) is not None]
    assert len({kind.name for kind in kinds}) == len(kinds), "carried state has names of its own"
    return {kind.name: kind for kind in kinds}
