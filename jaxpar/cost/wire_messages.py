"""Seconds of messages of weights and gradients: exact or quantized (`jaxpar.mesh.quantized`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from jaxpar.cost.messages import Network, Ring
from jaxpar.hardware.sources import derived
from jaxpar.mesh.quantized.blocks import BLOCK, SCALE_BYTES
from jaxpar.mesh.quantized.transport import Transport

CODE_BYTES: Annotated[dict[str, float], derived("bits of a code")] = {
    "int8": 1.0,
    "float8_e4m3fn": 1.0,
    "int4": 0.5,
}
"""Bytes of a code."""

GRADIENT: Annotated[float, derived("float32")] = 4.0
"""Bytes of an accumulated gradient."""


def element_bytes(wire: str | None, otherwise: float) -> float:
    """Bytes of an element on the wire, with its share of a scale."""
    if wire == "bfloat16":
        return 2.0
    return otherwise if wire is None else CODE_BYTES[wire] + SCALE_BYTES / BLOCK


@dataclass(frozen=True)
class WireMessages:
    """Messages over one group of ranks; sizes are elements of full weights, of which `quantized` are 8-bit values
    and are sent unchanged."""

    network: Network
    wire: Transport
    ranks: int
    stride: int
    """Devices from one rank to the next."""
    item: float
    """Bytes of a stored weight."""

    @cached_property
    def _full_ring(self) -> Ring:
        return self.network.ring(self.ranks, self.stride)

    @property
    def _ranks_per_host(self) -> int:
        """Ranks of the group in each host."""
        return self.ranks // self._full_ring.hosts

    @cached_property
    def _inside(self) -> Ring:
        return self.network.group(self._ranks_per_host, self._ranks_per_host)

    @cached_property
    def _between(self) -> Ring:
        hosts = self._full_ring.hosts
        return self.network.group(hosts, 1, self.network.leaving(hosts, self.stride * self._ranks_per_host))

    @property
    def _two_levels(self) -> bool:
        return 1 < self._full_ring.hosts < self.ranks

    def _sent(self, elements: float, quantized: float) -> float:
        """Bytes of stored weights on the wire."""
        return element_bytes(self.wire.weight, self.item) * (elements - quantized) + quantized

    def gather(self, elements: float, quantized: float = 0.0) -> float:
        """A microbatch's gather of a weight of so many elements."""
        hpz = self.wire.hpz
        if hpz > 1:
            return self.network.ring(hpz, self.stride).gather(self.item * (elements - quantized) + quantized)
        return self.gather_full(elements, quantized)

    def gather_once(self, elements: float, quantized: float = 0.0) -> float:
        """The gather between hpZ shards, once a step; 0 without these."""
        hpz = self.wire.hpz
        if hpz == 1:
            return 0.0
        sent = self._sent(elements, quantized) / hpz
        return self.network.ring(self.ranks // hpz, self.stride * hpz).gather(sent)

    def gather_full(self, elements: float, quantized: float = 0.0) -> float:
        """The gather of updated weights under ZeRO-1 and 2, once a step."""
        return self._full_ring.gather(self._sent(elements, quantized))

    def scatter(self, elements: float) -> float:
        """A reduce-scatter of the gradient of so many elements."""
        sent = element_bytes(self.wire.gradient, GRADIENT) * elements
        if self.wire.gradient is None:
            return self._full_ring.gather(sent)  # its mirror image
        if not self._two_levels:
            return self._full_ring.exchange(sent)
        inside = element_bytes("int8" if self.wire.gradient == "int4" else self.wire.gradient, 0.0) * elements
        return self._inside.exchange(inside) + self._between.exchange(sent / self._ranks_per_host)

    def reduce(self, elements: float) -> float:
        """An all-reduce of the gradient of so many elements."""
        if self.wire.gradient is None:
            return self._full_ring.reduce(GRADIENT * elements)
        back = element_bytes(self.wire.gradient, 0.0) * elements
        if not self._two_levels:
            return self.scatter(elements) + self._full_ring.gather(back)
        return self.scatter(elements) + self._between.gather(back / self._ranks_per_host) + self._inside.gather(back)
