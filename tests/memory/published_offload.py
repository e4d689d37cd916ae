"""The memory of offloading under a pipeline, as its authors state it (Yuan et al., USENIX ATC 2024, section 4).

At any time a few units (`IN_TRANSIT`) are whole on the device: the one that computes, the one before it that is being
offloaded, the next one that is being fetched, and the room that the next copy needs.
"""

from jaxpar.memory.layer_shape import LayerShape, inside_numbers, matrix_numbers

IN_TRANSIT = 4
"""Units that are whole on the device, in the published system."""

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
