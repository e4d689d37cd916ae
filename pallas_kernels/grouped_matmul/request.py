"""A request for a grouped matmul: everything on which the choice of an implementation may depend."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels import choice


@dataclass(frozen=True)
class Request(choice.Request):
    """Rows [m, k] times weights [groups, k, n] on one device, with gradients."""

    m: int
    groups: int
    k: int
    n: int

    @property
    def elements(self) -> int:
        return max(self.m * max(self.k, self.n), self.groups * self.k * self.n)

    def __str__(self) -> str:
        return f"{self.m} x {self.k} by {self.groups} x {self.k} x {self.n} in {self.dtype} on {self.device_text}"
