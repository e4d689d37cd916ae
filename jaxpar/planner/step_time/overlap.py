"""The rule of each kind of message that compute hides: what runs beside it, and the least share that is waited for.

Gathers of weights run beside the layer before, reductions of gradients beside the layer after. XLA's schedule leaves a
share of them beside nothing, however short they are, and orders no more of them beside a layer than a part of its
compute can hide. The numbers are those closest to compiled programs (`python -m benchmarks.planner.compiled` compares
them, docs/predictions.md); nothing was measured on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxpar.trace.parts import WIRE, Done, Message, Part, Repeat, Run

GATHERS, SCATTERS = 0.03, 0.15
"""Least shares of gathers of weights, and of reductions of their gradients, that are waited for."""
BESIDE, BESIDE_TENSOR = 0.4, 0.1
"""Share of a layer that messages of weights run beside; the second where tensor ranks send messages in it."""
HELD_GATHERS, HELD_SCATTERS = 0.41, 0.66
"""The shares of chunks that a pipeline holds whole, whose messages have little compute beside them."""
HOST = 0.13
"""Least share of copies of activations to and from the host."""


def beside_weights(layer: Run, gather: float, scatter: float, tensor: int) -> Iterator[Part]:
    """A layer, which so many tensor ranks share, with messages of weights of so many seconds."""
    beside, least = BESIDE if tensor == 1 else BESIDE_TENSOR, GATHERS * gather + SCATTERS * scatter
    yield Message("least", least, WIRE, True, "data")
    yield Message("weights", gather + scatter - least, WIRE, False, "data")
    yield Repeat("beside", layer, beside)
    yield Done("weights")
    yield Repeat("layer", layer, 1 - beside)


def first_gather(gather: float) -> float:
    """Seconds that gathering the first layer of a pipeline's chunk adds: nothing runs beside it."""
    return (1 - GATHERS) * gather


def beside_copies(layer: Run, copy: float) -> Iterator[Part]:
    """A layer beside so many seconds of copies of activations to the host, or from it."""
    yield Message("least", HOST * copy, "host", True, "offload")
    yield Message("copies", (1 - HOST) * copy, "host", False, "offload")
    yield Repeat("layer", layer)
    yield Done("copies")
