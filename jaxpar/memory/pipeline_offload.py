"""Memory and time of offloading under a pipeline: a share of each (microbatch, chunk) is on the host in between.

Yuan et al., USENIX ATC 2024, section 4. The unit is what one microbatch keeps in one chunk of layers. After its forward
a share of it is offloaded to pinned host memory, and fetched just before its backward, while neighbouring units
compute. At any time a few units (`IN_TRANSIT`) are whole on the device: the one that computes, the one before it that
is being offloaded, the next one that is being fetched, and the room that the next copy needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.config.errors import UserError
from jaxpar.memory.layer_shape import LayerShape, inside_numbers, matrix_numbers
from jaxpar.units import rate, seconds, size

IN_TRANSIT = 4
"""Units that are whole on the device, in the published system."""

SLOWER = 1.5
"""Layers may take this many times the predicted time: the largest error in predictions of published runs."""

MASTER_AND_MOMENTS = 12
"""Bytes of a parameter's master weight and two moments, float32."""


def interleaved_units(pipe: int, chunks: int, rank: int = 0) -> int:
    """The most units in flight on a pipe rank under interleaved 1F1B: 2(p - 1) + (v - 1)p + 1 on the first.

    Narayanan et al. 2021 (arXiv:2104.04473): each later rank has two less.
    """
    return 2 * (pipe - 1 - rank) + (chunks - 1) * pipe + 1


def units_on_device(units: int, fraction: float, transit: float = IN_TRANSIT) -> float:
    """Units of activations in device memory: N - alpha·(N - transit), or all N if N is at most `transit`."""
    return units - fraction * max(0, units - transit)


def memory_bytes(
    static_bytes: float, unit_bytes: float, units: int, fraction: float, transit: float = IN_TRANSIT
) -> float:
    """M(alpha) = M_static + A·[N - alpha·(N - transit)]: the peak memory of a device.

    Args:
        static_bytes: weights, gradients and optimizer state, and the working set of a layer.
        unit_bytes: A, what one microbatch keeps in one chunk.
        units: N, how many are in flight at most.
        fraction: alpha, the share of each unit that is offloaded.
        transit: units that are whole on the device nevertheless.
    """
    return static_bytes + unit_bytes * units_on_device(units, fraction, transit)


def rank_parameters(shape: LayerShape, layers: int, vocab_rows: int = 0) -> int:
    """Parameters on one device of `layers` layers without biases, and of `vocab_rows` rows of a table [vocab, embed].

    Matrices and the table are split over the tensor ranks; norms are whole on each.
    """
    own = matrix_numbers(shape) + len(shape.layer.norms) * shape.embed
    return layers * own + vocab_rows * shape.embed // shape.tensor


def state_bytes(parameters: int, sharded_over: int, weight_bytes: int = 2, gradient_bytes: int = 4) -> float:
    """Bytes of a device's weights, gradients, and its share of master weights and moments (ZeRO stage 1).

    Args:
        parameters: of the device.
        sharded_over: ranks that share the optimizer's state: all that hold the same weights, context ranks among them.
        weight_bytes: per parameter.
        gradient_bytes: per parameter; gradients accumulate in float32.
    """
    return parameters * (weight_bytes + gradient_bytes + MASTER_AND_MOMENTS / sharded_over)


def working_bytes(shape: LayerShape) -> int:
    """The peak of a layer's backward, in the feed-forward, without what was kept for it.

    The joined input and the joined gradient of the output, [S·b, h]; and [S·b, f/t] for each hidden activation that
    elementwise work recomputes, for the gradient of the last of them, and for those of the matmuls' outputs: three
    times for GELU, five for SwiGLU.
    """
    feed_forward = shape.layer.parts[-1]
    again = sum(shape.width(one.dims) for one in feed_forward.activations if one.cheap)
    hidden = again + inside_numbers(shape, feed_forward)
    return shape.tokens * shape.item_bytes * (2 * shape.embed + hidden)


@dataclass(frozen=True)
class HiddenFraction:
    """How much of a unit the host link can move while units compute."""

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
