"""What is asked of a grouped matmul of codes with scales of tiles: all that the choice of what runs depends on."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.tiled_matmul import request


@dataclass(frozen=True, kw_only=True)
class Request(request.Request):
    """Rows [m, k] times [groups, n, k] on one device, summed over k, without a gradient."""

    groups: int
    squares: bool
    """Whether as many rows of a matrix as there are codes in a tile share their scales."""

    def __str__(self) -> str:
        return f"{self.groups} groups of {super().__str__()}"
