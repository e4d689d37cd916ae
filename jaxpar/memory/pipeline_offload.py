"""Whether a host link hides offloading under a pipeline: a share of each (microbatch, chunk) is on the host in between.

Yuan et al., USENIX ATC 2024, section 4. The unit is what one microbatch keeps in one chunk of layers. After its forward
a share of it is offloaded to pinned host memory, and fetched just before its backward, while neighbouring units
compute.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.config.errors import UserError
from jaxpar.pages.units import rate, seconds, size

SLOWER = 1.5
"""Layers may take this many times the predicted time: the largest error in predictions of published runs."""


@dataclass(frozen=True)
class HiddenFraction:
    """Share of a unit that the host link can move while units compute."""

    fraction: float
    """The largest alpha that is hidden in all phases, at most 1."""
    phase: str | None
    """The name in `bounds` that limits it; None if everything can be hidden."""
    bounds: dict[str, float]
    """The largest alpha of each phase, above 1 where there is room to spare."""


def largest_hidden_fraction(
    unit_bytes: float, bandwidth: float, forward_seconds: float, backward_seconds: float
) -> HiddenFraction:
    """The largest share of a unit that can be copied without waiting.

    While the pipeline fills, a unit is offloaded in the time of a forward: alpha·A <= BW·T_f. In steady state one is
    offloaded and one fetched, each direction of the link in the time of both: BW·(T_f + T_b). While it drains one is
    fetched in the time of a backward: BW·T_b.

    Args:
        unit_bytes: A.
        bandwidth: to the host's memory, bytes/s and direction.
        forward_seconds: T_f of a unit: a microbatch through a chunk.
        backward_seconds: T_b of the same.
    """
    assert unit_bytes > 0, "a unit keeps something"
    bounds = {
        "filling": bandwidth * forward_seconds / unit_bytes,
        "steady": bandwidth * (forward_seconds + backward_seconds) / unit_bytes,
        "draining": bandwidth * backward_seconds / unit_bytes,
    }
    phase = min(bounds, key=bounds.__getitem__)
    return HiddenFraction(min(1.0, bounds[phase]), phase if bounds[phase] < 1 else None, bounds)


def check_hidden(
    fraction: float, unit_bytes: float, bandwidth: float, forward_seconds: float, backward_seconds: float
) -> None:
    """Raises `UserError`, with the numbers, if the host link cannot hide `fraction` of each unit.

    Only what is certainly impossible is refused, so units may take `SLOWER` times their predicted seconds.
    """
    forward, backward = SLOWER * forward_seconds, SLOWER * backward_seconds
    most = largest_hidden_fraction(unit_bytes, bandwidth, forward, backward)
    if fraction <= most.fraction:
        return
    copy = fraction * unit_bytes / bandwidth
    there_are = {"filling": forward, "steady": forward + backward, "draining": backward}[str(most.phase)]
    raise UserError(
        f"memory.offload_fraction: {fraction:g} of the {size(unit_bytes, 2)} that a microbatch keeps in a chunk "
        f"takes {seconds(copy)} to the host at {rate(bandwidth)}, and while the pipeline is {most.phase} "
        f"there are {seconds(there_are)} ({SLOWER:g} times what is predicted) to hide it in; expected at most "
        f"{int(most.fraction * 100) / 100:g}"
    )
