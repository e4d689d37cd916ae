"""The mapping `model.attention_temperature`: queries that grow with their position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import POSITIVE, at_least


@dataclass(frozen=True)
class AttentionTemperature:
    """The query at position p of its document is multiplied by `1 + scale * log(1 + (p + 1) // floor)`
    (arXiv:2501.19399, as in Llama 4)."""

    floor: Annotated[int, at_least(1)]
    """Tokens up to which queries stay as they are."""
    scale: Annotated[float, POSITIVE] = 0.1
    """Factor of the logarithm."""
