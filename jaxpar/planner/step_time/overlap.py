"""The overlap rule: how much of its messages a step waits for, by their kind and by what runs beside them.

Gathers of weights run beside the layer before, reductions of gradients beside the layer after. XLA's schedule leaves a
share of them beside nothing, however short they are, and orders no more of them beside a layer than a part of its
compute can hide. The numbers are those closest to compiled programs (`python -m benchmarks.planner.compiled` compares
them, docs/predictions.md); nothing was measured on GPUs.
"""

from __future__ import annotations

GATHERS, SCATTERS = 0.03, 0.15
"""Least shares of gathers of weights, and of reductions of their gradients, that are waited for."""
BESIDE, BESIDE_TENSOR = 0.4, 0.1
"""Share of a layer's compute that messages of weights run beside; the second where tensor ranks send messages in it."""
HELD_GATHERS, HELD_SCATTERS = 0.41, 0.66
"""The shares of chunks that a pipeline holds whole, whose messages have little compute beside them."""
HOST = 0.13
"""Least share of copies of activations to and from the host."""


def waited(gather: float, scatter: float, free: float, tensor: int) -> float:
    """Seconds of messages of weights that nothing hides, beside `free` seconds of compute of a layer that so many
    tensor ranks share."""
    beside = BESIDE if tensor == 1 else BESIDE_TENSOR
    return max(GATHERS * gather + SCATTERS * scatter, gather + scatter - beside * free)


def first_gather(gather: float) -> float:
    """Seconds that gathering the first layer of a pipeline's chunk adds to `waited`: nothing runs beside it."""
    return (1 - GATHERS) * gather
