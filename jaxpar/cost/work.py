"""The kinds of work that the time of a part of a step is spent on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NamedTuple

from jaxpar.hardware.sources import derived
from jaxpar.trace.parts import WIRE, Run

ACCUMULATED: Annotated[float, derived("float32 read and written")] = 8.0
"""Bytes that the product that adds to a gradient of a weight moves for each number."""


class Counted(NamedTuple):
    """A group of matmuls on one device: seconds of its products and messages, bytes of the passes around them."""

    forward: float
    inward: float
    """Gradients of its input, and products that they need again."""
    weight: float
    """Gradients of its matrices."""
    moved: float
    """Bytes that passes beside the products read and write, forward."""
    moved_back: float
    scales: float = 0.0
    """Messages of the largest magnitudes of FP8 operands that the group waits for, forward."""
    scales_back: float = 0.0
    sent_bytes: float | None = None
    """Bytes of a number that tensor ranks gather for it; None where they exchange nothing around it."""


class Work(NamedTuple):
    """Seconds of a part of a step on one device, by what they are spent on."""

    matmul: float = 0.0
    attention: float = 0.0
    other: float = 0.0
    tensor: float = 0.0
    """Messages over the tensor ranks that are not hidden."""
    context: float = 0.0
    """The same, over the context ranks."""
    exchange: float = 0.0
    """Messages of tokens to the ranks of their experts and back, that are not hidden."""
    scales: float = 0.0
    """Messages of the largest magnitudes of FP8 operands, which are known before these are quantized."""
    beside: float = 0.0
    """Messages of tokens to and from experts that are hidden: compute runs beside them, and beside no other message,
    since one is in flight at a time."""

    @property
    def seconds(self) -> float:
        """Seconds of all parts together."""
        return self.matmul + self.attention + self.other + self.tensor + self.context + self.exchange + self.scales

    @property
    def sends(self) -> float:
        """Seconds of it in which tokens travel to experts or back, hidden or not."""
        return self.exchange + self.beside

    def run(self, prefix: str = "") -> Run:
        """The same as a run, with `prefix` before kinds of compute. Tokens on their way take the wire."""
        compute = ("matmuls", self.matmul), ("attention", self.attention), ("other", self.other)
        waits = ("tensor", self.tensor), ("context", self.context), ("exchange", self.exchange), ("scales", self.scales)
        kinds = {prefix + kind: seconds for kind, seconds in compute if seconds}
        computed = sum(kinds.values())
        kinds |= {kind: seconds for kind, seconds in waits if seconds}
        return Run(self.seconds, computed, kinds, {WIRE: self.sends} if self.sends else {})

    def times(self, factor: float) -> Work:
        """This many times the same."""
        return Work(*(value * factor for value in self))


def total(works: Iterable[Work]) -> Work:
    """Returns the sum of several works."""
    return Work(*map(sum, zip(*works, strict=True)))
