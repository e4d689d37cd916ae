"""How a weight and its gradient travel, as a plan decides it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from jaxpar.mesh.axes import SHARD_AXES

type WeightDtype = Literal["int8", "float8_e4m3fn"]
type GradientDtype = Literal["bfloat16", "int8", "int4"]


@dataclass(frozen=True)
class Transport:
    """How one weight and its gradient travel. A leaf of trees."""

    weight: WeightDtype | None = None
    """Dtype of the blocks of the gathered weight; None for its storage dtype, exact."""
    gradient: GradientDtype | None = None
    """Dtype of the blocks of the gradient; None for that in which it accumulates, exact."""
    node_devices: int | None = None
    """Devices of a node; None if all are in one."""
    secondary: int = 1
    """Neighbouring ranks that hold a second copy of the weights among them during a step."""
    rows: bool = False
    """Whether the rows of a table that tokens look up travel, and their gradients, in place of the table and its own.
    """
    early: tuple[str, ...] = ()
    """Axes over which a gradient is summed as soon as it is complete, in the backward of the last microbatch; the rest
    once a step, after all of them."""
    early_dim: int | None = None
    """Dim over which the early sum is scattered to its ranks, counted from the last one (-1); None where each has it
    whole."""

    @property
    def exact(self) -> Transport:
        """The same for a weight that must not be quantised."""
        return replace(self, weight=None, gradient=None)


def secondary_ranks(secondary: int, sizes: Mapping[str, int], split: Collection[str]) -> int | None:
    """Ranks of a secondary shard of `secondary` neighbours that share a weight: those with one place on the axes
    `split`, over which it is split while it is multiplied. None where neighbours are no whole ranks of an axis."""
    if all(axis not in split or sizes[axis] == 1 for axis in SHARD_AXES):
        return secondary
    found, left = 1, secondary
    for axis in reversed(SHARD_AXES):
        own, size = min(left, sizes[axis]), sizes[axis]
        if size % own or left % own:
            return None
        found *= 1 if axis in split else own
        left //= own
    return found


EXACT = Transport()
"""In the dtypes of the placements."""
