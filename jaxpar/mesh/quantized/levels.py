"""The ranks of a collective in two levels: those of one node, and those at the same place of every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import lax

from jaxpar.mesh.axes import AXES

type RankGroups = list[list[int]] | None
"""Groups of ranks of a collective by their index; None for one group of all."""


class Levels(NamedTuple):
    """`nodes` x `ranks` members of a collective, node by node."""

    nodes: int
    ranks: int
    """Of each node."""

    @property
    def inside(self) -> RankGroups:
        """The members in each node."""
        return None if self.nodes == 1 else self._places.tolist()

    @property
    def between(self) -> RankGroups:
        """The members with the same place in their nodes."""
        return None if self.ranks == 1 else self._places.T.tolist()

    @property
    def _places(self) -> np.ndarray:
        """The index of each member: [node, place in the node]."""
        return np.arange(self.nodes * self.ranks).reshape(self.nodes, self.ranks)


def levels_of(axes: Sequence[str], node_devices: int | None) -> Levels:
    """The levels of a collective over `axes`, inside the step's map; one level if `node_devices` is None."""
    sizes = {axis: lax.axis_size(axis) for axis in AXES}
    found = split_by_nodes(sizes, axes, node_devices)
    assert found is not None, f"ranks of {tuple(axes)} are not spread evenly over nodes of {node_devices} devices"
    return found


def split_by_nodes(sizes: Mapping[str, int], axes: Sequence[str], node_devices: int | None) -> Levels | None:
    """The levels of a collective over `axes` of a mesh, whose devices fill nodes of `node_devices` one after another.

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
