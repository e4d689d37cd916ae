"""The section `model.residual`: factors where blocks are added to the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import POSITIVE


@dataclass(frozen=True)
class ResidualConfig:
    """A block f makes `stream * x + output * f(x)` of the residual stream x, with a pair of factors for mixers and one
    for feed-forwards and experts: DeepNorm's alpha is a `stream` (arXiv:2203.00555)."""

    mixer_stream: Annotated[float, POSITIVE] = 1.0
    """Factor of the residual stream where the output of attention, or another mixer, is added (MiniMax-01)."""
    mixer_output: Annotated[float, POSITIVE] = 1.0
    """Factor of that output (Granite)."""
    mlp_stream: Annotated[float, POSITIVE] = 1.0
    """Factor of the residual stream where the output of the feed-forward or of experts is added."""
    mlp_output: Annotated[float, POSITIVE] = 1.0
    """Factor of that output."""
