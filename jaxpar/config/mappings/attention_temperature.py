"""The mapping `model.attention_temperature`: queries that grow with their position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import POSITIVE, at_least


@dataclass(frozen=True)
class AttentionTemperature:
    """The query at position p of its document is multiplied by `1 + scale * ln(1 + (p + offset) // floor)`, so that
    attention stays sharp over long contexts (arXiv:2501.19399)."""

    floor: Annotated[int, at_least(1)]
    """Positions, with the offset, below which queries stay as they are."""
    scale: Annotated[float, POSITIVE] = 0.1
    """Factor of the logarithm."""
    offset: Annotated[int, at_least(0)] = 0
    """Number added to each position: 1 in Llama 4, 0 in Ministral 3."""
