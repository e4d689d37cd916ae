"""A request for a grouped matmul: everything on which the choice of an implementation may depend."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels import choice
from pallas_kernels.choice import INDEXED


@dataclass(frozen=True)
class Request(choice.Request):
    """Rows [m, k] times weights [groups, k, n] on one device, with gradients."""

    m: int
    groups: int
    k: int
    n: int

    def exceeds_indices(self) -> str | None:
        """None if the kernels' indices reach all elements of the arrays, otherwise the reason."""
        if max(self.m * max(self.k, self.n), self.groups * self.k * self.n) >= INDEXED:
            return f"its arrays have at most 2^31 - 1 elements, which {self.m:,} rows or the weights exceed"
        return None

    def __str__(self) -> str:
        return f"{self.m} x {self.k} by {self.groups} x {self.k} x {self.n} in {self.dtype} on {self.device_text}"
