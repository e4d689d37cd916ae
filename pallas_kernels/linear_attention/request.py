"""A request to pass a state through chunks: everything on which the choice of an implementation may depend."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels import choice
from pallas_kernels.choice import INDEXED


@dataclass(frozen=True)
class Request(choice.Request):
    """States [key, value] of so many rows and heads on one device, with gradients."""

    chunks: int
    heads: int
    """Heads of all rows together."""
    size: int
    """Tokens of a chunk."""
    key: int
    value: int
    delta: bool
    """Whether the delta rule corrects values."""

    def exceeds_indices(self) -> str | None:
        """None if the kernels' indices reach all elements of the arrays, otherwise the reason."""
        widest = max(self.size * max(self.key, self.value, self.size), self.key * self.value)
        if self.chunks * self.heads * widest >= INDEXED:
            return f"its arrays have at most 2^31 - 1 elements, which {self.chunks * self.heads:,} chunks exceed"
        return None

    def __str__(self) -> str:
        rule = " by the delta rule" if self.delta else ""
        chunks = f"{self.chunks} chunks of {self.size} tokens"
        return f"{self.heads} states of {self.key} x {self.value}{rule}, {chunks} in {self.dtype} on {self.device_text}"
