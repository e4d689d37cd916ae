"""Quantization of the layers' dense matmuls in FP8, as far as their time depends on it (`docs/fp8.md`).

Quantizing an operand takes passes over memory beside the matmuls. Bytes that they read and write for each number:

| | forward | backward |
|---|---|---|
| input | written in 8 bits by the op that computes it (1) | read, transposed and written in 8 bits (3) |
| matrix, stored in 8 bits | transposed, for cuBLASLt or the kernel of tiles (2) | |
| matrix, stored in 8 bits, multiplied in 16 | dequantized (3) | the same |
| matrix, quantized with each use | read, written in 8 bits (3) | the same |
| gradient | | read, and written in 8 bits for the matmuls along both sides (4) |

Scales of tiles are found in the same passes: 4 bytes for each of the two sides along which an operand is quantized; of
matrices that are quantized with each use in the forward and again in the backward. Scales of `fp8_current`
are known before an operand is quantized, which reads it once more (`AMAX_READ`) and takes a message over all ranks.
XLA joins a part of these passes to those that make an operand; `docs/fp8.md` compares them with compiled programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from jaxpar.hardware.sources import derived

AMAX_READ: Annotated[float, derived("16 bits read")] = 2.0
"""Bytes per number of a tensor that is read for its amax before it is quantized."""
MAGNITUDE: Annotated[float, derived("float32")] = 4.0
"""Bytes of an amax in a message."""
SCALE: Annotated[float, derived("float32")] = 4.0
"""Bytes of a tile's scale."""


class Passes(NamedTuple):
    """Bytes that are read and written for each number of the operands of a matmul, beside the matmul itself."""

    input: float
    """Forward, as the weight's."""
    weight: float
    input_back: float
    weight_back: float
    gradient: float


SOURCE = derived("table above; docs/fp8.md compares them with compiled programs")
STORED: Annotated[Passes, SOURCE] = Passes(1.0, 2.0, 3.0, 0.0, 4.0)
"""One scale for a tensor, and matrices that are stored in 8 bits."""
EACH_USE: Annotated[Passes, SOURCE] = Passes(1.0, 3.0, 3.0, 3.0, 4.0)
"""The same with matrices that are quantized with each use."""
OF_TILES: Annotated[Passes, SOURCE] = Passes(4.0, 4.0, 4.0, 4.0, 8.0)
"""Scales of tiles, and matrices that are quantized with each use."""
STORED_SQUARES: Annotated[Passes, SOURCE] = Passes(4.0, 2.0, 4.0, 0.0, 8.0)
"""Scales of tiles, and matrices that are stored in 8 bits with scales of squares."""
DECODED_SQUARES: Annotated[Passes, SOURCE] = Passes(4.0, 3.0, 4.0, 3.0, 8.0)
"""The same with matrices that are dequantized before they are multiplied."""


@dataclass(frozen=True)
class MatmulQuantization:
    """Quantization of the dense matmuls of a model's layers."""

    groups: tuple[str, ...] | None
    """Groups of matmuls that are quantized; None for all."""
    passes: Passes = STORED
    multiplied: bool = True
    """Whether 8-bit values are multiplied; otherwise they are dequantized to the compute dtype."""
    tile: int | None = None
    """Numbers that share a scale; None if a tensor has one."""
    measures_amax: bool = False
    """Whether the amax of an operand is reduced over all ranks before it is quantized."""
    once: bool = False
    """Whether matrices are quantized once per step, and stored and gathered in 8 bits."""
    stored: float = 0.0
    """Share of the quantized layers for which that is so: rows of a pipeline with an exception are gathered in the
    compute dtype."""
    exact: tuple[int, int] = (0, 0)
    """Numbers of layers at the beginning and at the end of the model that are not quantized, routed experts among
    them."""
    layers: int = 0
    """Layers of that model."""

    @property
    def sent_bytes(self) -> float:
        """Bytes of a number that tensor ranks gather as a code, with its part of a scale."""
        return 1.0 if self.tile is None else 1.0 + SCALE / self.tile

    def quantizes(self, group: str) -> bool:
        """Whether a group of matmuls is quantized."""
        return self.groups is None or group in self.groups
