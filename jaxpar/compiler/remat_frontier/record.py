"""The records of a frontier; their fields are the JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class FrontierPoint:
    """One choice for all layers, or a mix of two, on one device."""

    name: str
    """Its preset; empty if it is none."""
    layer_bytes: float
    """Kept on the device of one microbatch in one layer; the mean where layers differ."""
    chunk_bytes: int
    """The same in one chunk of layers."""
    total_bytes: int
    """The same of all units in flight."""
    host_bytes: int
    """In the host's memory, of all units in flight, for one device."""
    flops_share: float
    """FLOPs of matmuls and attention that run again, as a share of the step's."""
    seconds: float
    """Per step: what runs again, and copies that layers are too short to hide."""
    time_share: float
    """Share of the step's time with nothing recomputed."""
    fits: bool
    """Whether `total_bytes` and the buffers of copies to and from the host fit into what is left for activations."""
    on_front: bool
    """Whether no other choice without host memory has as few bytes and as little time."""
    runs: tuple[tuple[int, dict[str, str]], ...]
    """(layers, what happens to each activation) in the order of a chunk."""
    kinds: dict[str, dict[str, str]] = field(default_factory=dict)
    """What happens to each activation of the layers of each kind; nothing where layers are alike."""


@dataclass(frozen=True)
class RematFrontier:
    """The frontier of a configuration on a cluster."""

    config: str
    """What the user calls the configuration."""
    cluster: str
    gpu: str
    gpus_per_host: int
    devices: int
    axes: dict[str, int]
    layers: int
    """Of a chunk; the longest."""
    chunks: int
    """Of a pipe rank."""
    microbatches: int
    microbatch_rows: int
    units: int
    """Microbatches times chunks that a device keeps at the same time: a stash has this many slots on every rank."""
    units_of_ranks: tuple[int, ...]
    """How many of them each pipe rank fills under its schedule."""
    usable_bytes: int
    """Bytes of a device that a program may take."""
    parts: dict[str, int]
    """Bytes of everything but activations."""
    room_bytes: int
    """Bytes left for activations; below 0 where the rest does not fit."""
    step_seconds: float
    """A step with nothing recomputed, without a pipeline's bubble and without transfers of weights."""
    host_bandwidth: float
    """Bytes per second and direction to the host's memory."""
    points: tuple[FrontierPoint, ...]
    """The frontier without host memory, all layers of a kind alike, by rising bytes."""
    host_points: tuple[FrontierPoint, ...]
    """The frontier with unlimited host memory."""
    presets: tuple[FrontierPoint, ...]
    cheapest: FrontierPoint | None
    """The least time that fits, with one or two kinds of layers, without host memory; None where nothing fits."""
    cheapest_with_host: FrontierPoint | None
    """The same with host memory."""
    least_bytes: int
    """The least bytes of all units in flight without host memory."""
    notes: tuple[str, ...] = ()
    """What the configuration rules out of this."""
    way_out: str = ""
    """The nearest settings that fit, in words, where no choice does."""

    @property
    def fits(self) -> bool:
        """Whether some choice fits."""
        return self.cheapest is not None or self.cheapest_with_host is not None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def hull(points: tuple[FrontierPoint, ...]) -> tuple[FrontierPoint, ...]:
    """The lower convex hull of a frontier: chunks with layers of two of its neighbours reach what lies between them."""
    found: list[FrontierPoint] = []
    for point in points:
        while len(found) > 1 and _above(found[-2], found[-1], point):
            found.pop()
        found.append(point)
    return tuple(found)


def _above(left: FrontierPoint, middle: FrontierPoint, right: FrontierPoint) -> bool:
    """Whether `middle` lies on the line from `left` to `right`, or above it."""
    rise = (right.seconds - left.seconds) * (middle.total_bytes - left.total_bytes)
    return (middle.seconds - left.seconds) * (right.total_bytes - left.total_bytes) >= rise
