"""A request to pass a state through chunks: everything on which the choice of an implementation may depend."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels import choice


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

    @property
    def elements(self) -> int:
        widest = max(self.size * max(self.key, self.value, self.size), self.key * self.value)
        return self.chunks * self.heads * widest

    def __str__(self) -> str:
        rule = " by the delta rule" if self.delta else ""
        chunks = f"{self.chunks} chunks of {self.size} tokens"
        return f"{self.heads} states of {self.key} x {self.value}{rule}, {chunks} in {self.dtype} on {self.device_text}"
