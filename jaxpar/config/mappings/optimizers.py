"""The mapping `optimizer.options`: settings of each update rule.

Numbers with a fraction are arguments of a compiled step; the others choose the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from jaxpar.config.bounds import BELOW_ONE, POSITIVE, at_least


@dataclass(frozen=True)
class AdamWOptions:
    """Settings of AdamW."""

    beta1: Annotated[float, BELOW_ONE] = 0.9
    """Decay of the first moment mu."""
    beta2: Annotated[float, BELOW_ONE] = 0.95
    """Decay of the second moment nu."""
    epsilon: Annotated[float, POSITIVE] = 1e-8
    """Added to the square root of nu."""


@dataclass(frozen=True)
class MuonOptions(AdamWOptions):
    """Settings of Muon; those of AdamW are for all weights but the layers' matrices."""

    momentum: Annotated[float, BELOW_ONE] = 0.95
    """Momentum (Nesterov)."""
    iterations: Annotated[int, at_least(1, 100)] = 5
    """Newton-Schulz iterations."""
    matrix_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the iterations' matmuls, and of the messages that exchange matrices for them; momentum and weights stay
    in float32. `auto` is bfloat16 on GPUs, as published, and float32 on CPUs."""


@dataclass(frozen=True)
class LionOptions:
    """Settings of Lion."""

    beta1: Annotated[float, BELOW_ONE] = 0.9
    """Weight of the momentum in the average of momentum and gradient whose sign is the update."""
    beta2: Annotated[float, BELOW_ONE] = 0.99
    """Decay of the momentum."""


@dataclass(frozen=True)
class AdafactorOptions:
    """Settings of Adafactor."""

    relative: bool = False
    """Multiply updates by the root mean square of the weight (at least 1e-3), as the paper does: the learning rate is
    then relative to the weight, 1e-2 in the paper. Without this, it is about AdamW's."""
