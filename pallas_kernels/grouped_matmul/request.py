"""What is asked of a grouped matmul: all that a choice between implementations may depend on."""

from __future__ import annotations

from dataclasses import dataclass

INDEXED = 2**31
"""Elements of an array that the kernels' indices reach."""


@dataclass(frozen=True)
class Request:
    """Rows [m, k] times weights [groups, k, n] on one device, with gradients."""

    platform: str
    """`gpu` or `cpu`, or `interpreter` where Pallas' interpreter runs the kernels."""
    dtype: str
    m: int
    groups: int
    k: int
    n: int
    compute_capability: float | None = None
    """Of the GPU (9.0 is Hopper); None where there is none."""
    gpu: str = ""
    """Name of the GPU, as `jax.Device.device_kind` has it."""
    processors: int | None = None
    """Streaming multiprocessors of the GPU."""

    def exceeds_indices(self) -> str | None:
        """None if the kernels' indices reach all elements of its arrays, else why not."""
        if max(self.m * max(self.k, self.n), self.groups * self.k * self.n) >= INDEXED:
            return f"its arrays have at most 2^31 - 1 elements, which {self.m:,} rows or the weights exceed"
        return None

    def __str__(self) -> str:
        on = self.platform if self.compute_capability is None else f"{self.platform} {self.compute_capability:.1f}"
        return f"{self.m} x {self.k} by {self.groups} x {self.k} x {self.n} in {self.dtype} on {on}"
