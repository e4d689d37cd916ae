"""Links between GPUs, and from a GPU to its host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from jaxpar.hardware.sources import cited
from jaxpar.pages.units import GIGA, MEGA, MICRO

NCCL = cited("NCCL's own cost model, hwLat in src/graph/tuning.cc: ring algorithm, simple protocol")
NVLINK_HOP: Annotated[float, NCCL] = 3.4 * MICRO
"""Seconds that a hop of a ring takes over NVLink."""
PCIE_HOP: Annotated[float, NCCL] = 5.7 * MICRO
"""The same over PCI Express."""
NETWORK_HOP: Annotated[float, NCCL] = 9.6 * MICRO
"""The same between hosts."""
PCIE_LANES: Annotated[dict[int, float], cited("PCI Express, 16 lanes")] = {3: 16.0, 4: 32.0, 5: 64.0}
"""GB/s in one direction, by generation."""


@dataclass(frozen=True)
class Link:
    """One level of a cluster, as one GPU sees it.

    The bandwidth is the link's peak: a collective reaches less, by a share that must be measured.
    """

    name: str
    """Name, such as `NVLink 4`."""
    bandwidth: float
    """Bytes per second that a GPU can send; it can receive as many at the same time."""
    latency: float
    """Seconds that one hop of a ring adds."""
    source: str
    """Source of the bandwidth."""

    def with_bandwidth(self, gigabytes: float, latency_us: float | None, source: str) -> Link:
        """This level with a user's numbers: GB/s per GPU and direction, and microseconds."""
        latency = self.latency if latency_us is None else latency_us / MEGA
        return replace(self, bandwidth=gigabytes * GIGA, latency=latency, source=source)


def nvlink(generation: int, total_gigabytes: float, source: str) -> Link:
    """NVLink of a GPU; datasheets give `total_gigabytes` per second, both directions together."""
    return Link(f"NVLink {generation}", total_gigabytes / 2 * GIGA, NVLINK_HOP, source)


def nvlink_c2c(total_gigabytes: float, source: str) -> Link:
    """NVLink between GPU and CPU of one module; `total_gigabytes` per second, both directions together."""
    return replace(nvlink(0, total_gigabytes, source), name="NVLink-C2C")


def pcie(generation: int) -> Link:
    """Sixteen lanes of PCI Express, to the host and, without NVLink, to the other cards in it."""
    return Link(
        f"PCIe {generation} x16", PCIE_LANES[generation] * GIGA, PCIE_HOP, f"PCI Express {generation}.0, 16 lanes"
    )


MEASURED = "measured"
"""Source of a bandwidth that copies or collectives were measured to reach on the machine."""
HOST_SHARE: Annotated[
    float,
    cited(
        "github.com/NVIDIA/nvbandwidth: 52.8 of 64 GB/s on H100 (issue 24), 24.8 of 32 on A100 (53), one way at a "
        "time; that both ways at once reach it is assumed (that A100 had 24 and 11)"
    ),
] = 0.82
"""Part of the link to host memory that a copy reaches, in each direction."""


def network(gigabits: float, source: str) -> Link:
    """The share of a GPU in its host's network cards."""
    return Link("network", gigabits / 8 * GIGA, NETWORK_HOP, source)
