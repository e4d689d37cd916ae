"""The mapping `islands.outer`: the optimizer of the global weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import BELOW_ONE, POSITIVE


@dataclass(frozen=True)
class OuterConfig:
    """SGD with momentum on outer gradients: the mean over islands of the global weights minus the island's."""

    rate: Annotated[float, POSITIVE] = 0.7
    """Learning rate of an outer update; constant."""
    momentum: Annotated[float, BELOW_ONE] = 0.9
    """Share of the momentum that the next outer update retains; 0 averages the islands' weights."""
    nesterov: bool = True
    """Whether the momentum is Nesterov's."""
