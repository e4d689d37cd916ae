"""Links between GPUs, and from a GPU to its host.

Latencies are those of NCCL's own cost model: `hwLat` in its src/graph/tuning.cc, ring algorithm, simple protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxpar.pages.units import GIGA, MEGA, MICRO


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
    return Link(f"NVLink {generation}", total_gigabytes / 2 * GIGA, 3.4 * MICRO, source)


def nvlink_c2c(total_gigabytes: float, source: str) -> Link:
    """NVLink between GPU and CPU of one module; `total_gigabytes` per second, both directions together."""
    return replace(nvlink(0, total_gigabytes, source), name="NVLink-C2C")


def pcie(generation: int) -> Link:
    """Sixteen lanes of PCI Express, to the host and, without NVLink, to the other cards in it."""
    per_direction = {3: 16.0, 4: 32.0, 5: 64.0}[generation]
    return Link(f"PCIe {generation} x16", per_direction * GIGA, 5.7 * MICRO, f"PCI Express {generation}.0, 16 lanes")


MEASURED = "measured"
"""Source of a bandwidth that copies or collectives were measured to reach on the machine."""
HOST_SHARE = 0.82
"""Part of the link to host memory that a copy reaches, in each direction. Measured in one direction at a time with
nvbandwidth: 52.8 of 64 GB/s on H100 (github.com/NVIDIA/nvbandwidth, issue 24), 24.8 of 32 GB/s on A100 (issue 53); that
it holds in both directions at once is assumed (that A100 had 24 and 11 GB/s)."""


def network(gigabits: float, source: str) -> Link:
    """The share of a GPU in its host's network cards."""
    return Link("network", gigabits / 8 * GIGA, 9.6 * MICRO, source)
