"""Activations that a layer can save, and the cost of recomputing each; `jaxpar.cost.recomputation` makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxpar.layers.declaration.activations import LAYER_INPUT


@dataclass(frozen=True)
class Recomputation:
    """An operation as the search sees it: its outputs are kept, or it runs again."""

    outputs: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class LayerCosts:
    """Activations that a layer can save and the cost of recomputing each, for one microbatch on one device."""

    sizes: Mapping[str, int]
    """Bytes of each activation, in the order in which a layer makes them."""
    recomputations: Sequence[Recomputation]
    """Each activation but the layer's input is the output of one."""
    forward_seconds: float = 0.0
    """Seconds of the layer's forward, with the messages that are not hidden; copies to the host hide behind it."""
    backward_seconds: float = 0.0
    """Seconds of the layer's backward, without recomputation; copies from the host hide behind it."""
    host_bandwidth: float = float("inf")
    """Bytes per second and direction to the host's memory."""
    waited: float = 0.0
    """Least share of copies that the layer waits for, however much there is to hide them."""

    def __post_init__(self) -> None:
        made = [name for one in self.recomputations for name in one.outputs]
        assert sorted(made) == sorted(set(self.sizes) - {LAYER_INPUT}), "each activation has one operation"

    def exposed_seconds(self, offloaded: float) -> float:
        """Seconds that a layer waits for copies of these bytes, beyond what forward and backward hide."""
        copy = offloaded / self.host_bandwidth
        least = self.waited * copy
        return max(least, copy - self.forward_seconds) + max(least, copy - self.backward_seconds)
