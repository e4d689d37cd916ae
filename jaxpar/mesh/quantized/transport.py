"""Transport of a weight and its gradient, as a plan decides it, and the ranks of a message inside and between nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from jax import lax

from jaxpar.mesh.axes import AXES, SHARD_AXES

type WeightDtype = Literal["int8", "float8_e4m3fn"]
type GradientDtype = Literal["bfloat16", "int8", "int4"]


@dataclass(frozen=True)
class Transport:
    """Transport of one weight and its gradient. A leaf of trees."""

    weight: WeightDtype | None = None
    """Dtype of the blocks of the gathered weight; None for its storage dtype, exact."""
    gradient: GradientDtype | None = None
    """Dtype of the blocks of the gradient; None for that in which it accumulates, exact."""
    node_devices: int | None = None
    """Devices of a node; None if all are in one."""
    hpz: int = 1
    """Neighbouring ranks that hold a second copy of the weights among them during a step."""
    rows: bool = False
    """Whether the rows of a table that tokens look up travel, and their gradients, in place of the table and its own.
    """

    @property
    def exact(self) -> Transport:
        """The same for a weight that must not be quantized."""
        return replace(self, weight=None, gradient=None)


def hpz_ranks(hpz: int, sizes: Mapping[str, int], split: Collection[str]) -> int | None:
    """Ranks of an hpZ shard of `hpz` neighbours that share a weight: those with one place on the axes
    `split`, over which it is split while it is multiplied. None where neighbours are no whole ranks of an axis."""
    if all(axis not in split or sizes[axis] == 1 for axis in SHARD_AXES):
        return hpz
    ranks, left = 1, hpz
    for axis in reversed(SHARD_AXES):
        taken, size = min(left, sizes[axis]), sizes[axis]
        if size % taken or left % taken:
            return None
        ranks *= 1 if axis in split else taken
        left //= taken
    return ranks


EXACT = Transport()
"""Messages in the dtypes of the placements."""


# ---- two levels

type RankGroups = list[list[int]] | None
"""Groups of ranks of a collective by their index; None for one group of all."""


class Levels(NamedTuple):
    """`nodes` x `ranks` members of a collective, node by node."""

    nodes: int
    ranks: int
    """Members in each node."""

    @property
    def inside(self) -> RankGroups:
        """The members in each node."""
        return None if self.nodes == 1 else self._indices.tolist()

    @property
    def between(self) -> RankGroups:
        """The members with the same place in their nodes."""
        return None if self.ranks == 1 else self._indices.T.tolist()

    @property
    def _indices(self) -> np.ndarray:
        """The index of each member: [node, place in the node]."""
        return np.arange(self.nodes * self.ranks).reshape(self.nodes, self.ranks)


def levels_of(axes: Sequence[str], node_devices: int | None) -> Levels:
    """The levels of a collective over `axes`, inside the step's map; one level if `node_devices` is None."""
    sizes = {axis: lax.axis_size(axis) for axis in AXES}
    levels = split_by_nodes(sizes, axes, node_devices)
    assert levels is not None, f"ranks of {tuple(axes)} are not spread evenly over nodes of {node_devices} devices"
    return levels


def split_by_nodes(sizes: Mapping[str, int], axes: Sequence[str], node_devices: int | None) -> Levels | None:
    """The levels of a collective over `axes` of a mesh, whose devices, those of an island, fill nodes of
    `node_devices` one after another.

    None where groups have different numbers of ranks in their nodes. A collective whose ranks are all in one node, or
    each in a node of its own, has one level.
    """
    ranks = int(np.prod([sizes[axis] for axis in axes]))
    if node_devices is None:
        return Levels(1, ranks)
    devices = np.arange(int(np.prod([sizes[axis] for axis in AXES]))).reshape([sizes[axis] for axis in AXES])
    places = [AXES.index(axis) for axis in axes]
    groups = np.moveaxis(devices, places, range(-len(places), 0)).reshape(-1, ranks) // node_devices
    each = int((groups[0] == groups[0, 0]).sum())
    if ranks % each:
        return None
    nodes = groups.reshape(len(groups), -1, each)
    alike = (nodes == nodes[:, :, :1]).all()
    apart = all(len(set(row)) == nodes.shape[1] for row in nodes[:, :, 0].tolist())
    return Levels(ranks // each, each) if alike and apart else None
