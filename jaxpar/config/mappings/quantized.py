"""The mapping `parallel.quantized`: messages between devices in blocks of few bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class QuantizedConfig:
    """Quantized communication (`docs/zeropp.md`). Norms, biases and routers always travel exactly."""

    weights: Literal["int8", "float8_e4m3fn"] | None = None
    """Matrices while ranks gather them: 8 bits in blocks with a scale each (ZeRO++'s qwZ); null means
    `precision.storage`."""
    gradients: Literal["bfloat16", "int8", "int4"] | None = None
    """Gradients of matrices while ranks exchange them, each summed in float32 after it was received; int8 and int4 in
    blocks with a scale each (ZeRO++'s qgZ), inside the nodes first, where int4 has 8 bits too; null means
    `precision.gradient`."""
    tokens: Literal["float8_e4m3fn"] | None = None
    """Tokens on their way to the ranks of their experts: 8 bits in blocks with a scale each; null means
    `precision.compute`. Results, and gradients in both directions, travel in `precision.compute`."""
