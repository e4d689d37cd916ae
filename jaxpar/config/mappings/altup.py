"""The mapping `model.altup`: several residual streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import POSITIVE, at_least

MOST_STREAMS = 8


@dataclass(frozen=True)
class AltUpConfig:
    """Alternating updates (arXiv:2301.13310): layers compute with one of several residual streams, predict all of them
    from all, and correct each by what the layer made of that one (Gemma 3n)."""

    streams: Annotated[int, at_least(2, MOST_STREAMS)] = 4
    """Residual streams, each as wide as `model.embed`."""
    active: Annotated[int, at_least(0, MOST_STREAMS - 1)] = 0
    """The stream that layers compute with, from 0."""
    clip: Annotated[float, POSITIVE] | None = None
    """Limit of the magnitude of the coefficients' weights in training; null means none."""
