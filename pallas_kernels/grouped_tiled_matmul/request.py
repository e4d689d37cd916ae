"""A request for a grouped matmul of quantized operands with tile scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pallas_kernels.tiled_matmul import request


@dataclass(frozen=True, kw_only=True)
class Request(request.Request):
    """Rows [m, k] times [groups, n, k] on one device, summed over k, without a gradient.

    Of weights: [m, k] transposed times [m, n], summed over the rows of each group.
    """

    groups: int
    squares: bool
    """Whether as many rows of a matrix as there are codes in a tile share their scales; of weights, of any."""
    of: Literal["rows", "weights"] = "rows"
    """Kind of result: the rows of all groups, or a matrix for each group."""

    def __str__(self) -> str:
        of = "groups of" if self.of == "rows" else "matrices from groups of"
        return f"{self.groups} {of} {super().__str__()}"
