"""A request for a matmul of quantized operands with tile scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pallas_kernels import choice


@dataclass(frozen=True)
class Request(choice.Request):
    """[m, k] times [n, k], or groups of rows of [m, k] times [groups, n, k], on one device, summed over k, without a
    gradient.

    Of weights: [m, k] transposed times [m, n], summed over the rows of each group.
    """

    forms: tuple[str, str]
    """Formats of the codes."""
    m: int
    n: int
    k: int
    tile: int
    """Codes of a row that have one scale."""
    groups: int | None = None
    """None if all rows are multiplied by one matrix."""
    squares: bool = True
    """Whether as many rows of a matrix as there are codes in a tile share their scales; of weights, of any."""
    of: Literal["rows", "weights"] = "rows"
    """Kind of result: the rows of all groups, or a matrix for each group."""

    @property
    def elements(self) -> int:
        return max(self.m * max(self.k, self.n), (self.groups or 1) * self.n * self.k)

    def __str__(self) -> str:
        groups = "" if self.groups is None else f"{self.groups} groups of "
        of = "" if self.of == "rows" else "matrices from "
        sides = f"{self.m} x {self.k} by {self.n} x {self.k}"
        return f"{of}{groups}{sides} in {' and '.join(self.forms)} on {self.device_text}"
