"""The rule of each kind of message that compute hides: what runs beside it, and the least share that is waited for.

Gathers of weights run beside the layer before, reductions of gradients beside the layer after. XLA's schedule leaves a
share of them beside nothing, however short they are, and orders no more of them beside a layer than a part of its
compute can hide. The numbers are those closest to compiled programs (`python -m benchmarks.planner.compiled` compares
them, docs/predictions.md); nothing was measured on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from jaxpar.hardware.sources import measured
from jaxpar.trace.parts import WIRE, Done, Message, Part, Repeat, Run

PROGRAMS = measured("benchmarks/planner/compiled.csv: programs of XLA:GPU; nothing was measured on GPUs")
GATHERS: Annotated[float, PROGRAMS] = 0.03
"""Least share of gathers of weights that is waited for."""
SCATTERS: Annotated[float, PROGRAMS] = 0.15
"""Least share of reductions of gradients that is waited for."""
BESIDE: Annotated[float, PROGRAMS] = 0.5
"""Share of a layer that messages of weights run beside."""
BESIDE_TENSOR: Annotated[float, PROGRAMS] = 0.18
"""The same of a layer in which tensor ranks send messages."""
HELD_GATHERS: Annotated[float, PROGRAMS] = 0.41
"""Share of gathers that is waited for, of chunks that a pipeline holds whole: little runs beside them."""
HELD_SCATTERS: Annotated[float, PROGRAMS] = 0.66
"""The same of reductions."""
HOST: Annotated[float, PROGRAMS] = 0.13
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
