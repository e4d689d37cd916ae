"""A request for a matmul of quantized operands with tile scales."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels import choice


@dataclass(frozen=True)
class Request(choice.Request):
    """[m, k] times [n, k] on one device, summed over k, without a gradient."""

    forms: tuple[str, str]
    """Formats of the codes."""
    m: int
    n: int
    k: int
    tile: int
    """Codes of a row that have one scale."""

    def __str__(self) -> str:
        return f"{self.m} x {self.k} by {self.n} x {self.k} in {' and '.join(self.forms)} on {self.device_text}"
