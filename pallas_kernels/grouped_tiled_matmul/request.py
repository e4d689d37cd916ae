"""What is asked of a grouped matmul of codes with scales of tiles: all that the choice of what runs depends on."""

from __future__ import annotations

from dataclasses import dataclass

INDEXED = 2**31
"""Elements of an array that the kernel's indices reach."""


@dataclass(frozen=True)
class Request:
    """Rows [m, k] times [groups, n, k] on one device, summed over k, without a gradient."""

    platform: str
    """`gpu` or `cpu`, or `interpreter` where Pallas' interpreter runs the kernel."""
    forms: tuple[str, str]
    """Formats of the codes."""
    dtype: str
    """Of the result."""
    m: int
    groups: int
    n: int
    k: int
    tile: int
    """Codes of a row that have one scale."""
    squares: bool
    """Whether as many rows of a matrix share their scales."""
    compute_capability: float | None = None
    """Of the GPU (9.0 is Hopper); None where there is none."""
    gpu: str = ""
    """Name of the GPU, as `jax.Device.device_kind` has it."""
    processors: int | None = None
    """Streaming multiprocessors of the GPU."""

    def __str__(self) -> str:
        on = self.platform if self.compute_capability is None else f"{self.platform} {self.compute_capability:.1f}"
        return f"{self.m} x {self.k} by {self.groups} x {self.n} x {self.k} in {' and '.join(self.forms)} on {on}"
