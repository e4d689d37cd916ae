"""How the dense matmuls of layers run in FP8, as far as their time depends on it (`docs/fp8.md`).

An operand becomes codes in passes over memory beside the products. Of each number they read and write:

| | forward | backward |
|---|---|---|
| input | written as a code by what makes it (1) | read and written as a code, its rows and columns changed (3) |
| matrix, of codes | rows and columns changed, for cuBLASLt or the kernel of tiles (2) | |
| matrix, of codes that are not multiplied | what they stand for, in 16 bits (3) | the same |
| matrix, quantized with each use | read, written as a code (3) | the same |
| gradient | | read, and written as codes for the products along both sides (4) |

Scales of tiles are found in the same passes: 4 bytes for each of the two sides along which an operand is quantized; of
matrices that are quantized with each use in the forward and again in the backward. Scales of `fp8_current`
are known before an operand is quantized, which reads it once more (`FINDING`) and takes a message over all ranks.
XLA joins a part of these passes to those that make an operand; `docs/fp8.md` compares them with compiled programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from jaxpar.hardware.sources import derived

FINDING: Annotated[float, derived("16 bits read")] = 2.0
"""Bytes of a number that is read to find the largest magnitude of its tensor before it is quantized."""
MAGNITUDE: Annotated[float, derived("float32")] = 4.0
"""Bytes of a largest magnitude in a message."""
SCALE: Annotated[float, derived("float32")] = 4.0
"""Bytes of a tile's scale."""


class Passes(NamedTuple):
    """Bytes that are read and written for each number of the operands of a matmul, beside its products."""

    input: float
    """Forward, as the weight's."""
    weight: float
    input_back: float
    weight_back: float
    gradient: float


SOURCE = derived("table above; docs/fp8.md compares them with compiled programs")
STORED: Annotated[Passes, SOURCE] = Passes(1.0, 2.0, 3.0, 0.0, 4.0)
"""One scale for a tensor, and matrices that are stored as codes."""
EACH_USE: Annotated[Passes, SOURCE] = Passes(1.0, 3.0, 3.0, 3.0, 4.0)
"""The same with matrices that are quantized with each use."""
OF_TILES: Annotated[Passes, SOURCE] = Passes(4.0, 4.0, 4.0, 4.0, 8.0)
"""Scales of tiles, and matrices that are quantized with each use."""
STORED_SQUARES: Annotated[Passes, SOURCE] = Passes(4.0, 2.0, 4.0, 0.0, 8.0)
"""Scales of tiles, and matrices that are stored as codes with scales of squares."""
DECODED_SQUARES: Annotated[Passes, SOURCE] = Passes(4.0, 3.0, 4.0, 3.0, 8.0)
"""The same where what codes stand for is multiplied."""


@dataclass(frozen=True)
class MatmulQuantization:
    """How the dense matmuls of a model's layers run in FP8."""

    groups: tuple[str, ...] | None
    """Groups of matmuls that are quantized; None for all."""
    passes: Passes = STORED
    multiplied: bool = True
    """Whether codes are multiplied; else what they stand for, in the compute dtype."""
    tile: int | None = None
    """Numbers that share a scale; None if a tensor has one."""
    found: bool = False
    """Whether the scale of an operand is found from itself, over all ranks, before it is quantized."""
    once: bool = False
    """Whether matrices become codes once per step, which are what is stored and gathered."""
    stored: float = 0.0
    """Share of them for which that is so, of the layers that are quantized: rows of a pipeline with an exception are
    gathered in the compute dtype."""
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
