"""Places layouts on nodes with measured bandwidths, and predicts their time again with those bandwidths.

A search uses one bandwidth between hosts, the median of the measured ones. Each of its best layouts is then placed by
simulated annealing (`placement`), and its step time is computed again: every ring runs at its slowest edge between two
nodes, and so does the pipeline. A measured bandwidth is taken as that of one GPU's network card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.messages import Network, Ring, network_of
from jaxpar.cost.tables import NOTHING
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.links import Link
from jaxpar.pages.units import percent, seconds
from jaxpar.planner.placement.placement import groups_of, place, read_bandwidth, sends_round, traffic_of
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.heterogeneous import StepTimer

PLACED = 12
"""The least number of layouts that are placed."""
SWAPS = 4000
"""Swaps of two nodes that are tried for each."""


@dataclass(frozen=True)
class MeasuredNetwork(Network):
    """The links of neighbouring devices of a cluster, each node in its place.

    An all-to-all between hosts uses the links of every pair; of these only those of the ring are looked at, as for the
    other collectives.
    """

    between: tuple[tuple[float, ...], ...] = ()
    """Bytes per second from the node in one place to the node in another."""
    first: int = 0
    """The first device of the part."""
    devices: int = 0
    loops: bool = False
    """Whether the last stage of a pipeline sends to the first."""

    def ring(self, ranks: int, stride: int) -> Ring:
        """Like a cluster's, at the slowest edge of all such rings."""
        ring = super().ring(ranks, stride)
        if ring.hosts == 1:
            return ring
        places = self._places(self.first, self.devices).reshape(-1, ranks, stride)
        card = self._slowest(places, np.roll(places, -1, axis=1))
        return replace(ring, across=card * ring.across / ring.card, card=card, measured=NOTHING)

    def pair(self, stride: int, ranks: int) -> Ring:
        """Like a cluster's, at the slowest edge between stages in either direction."""
        ring = super().pair(stride, ranks)
        if ring.hosts == 1:
            return ring
        places = self._places(0, stride * ranks).reshape(ranks, stride)
        here, there = (places, np.roll(places, -1, axis=0)) if self.loops else (places[:-1], places[1:])
        card = min(self._slowest(here, there), self._slowest(there, here))
        return replace(ring, across=card, card=card, measured=NOTHING)

    def stages(self, stride: int, ranks: int) -> Ring:
        """Over all nodes, whichever part this is the network of."""
        return Network.stages(replace(self, first=0, devices=ranks * stride), stride, ranks)

    def _places(self, first: int, devices: int) -> np.ndarray:
        return np.arange(first, first + devices) // self.per_host

    def _slowest(self, here: np.ndarray, there: np.ndarray) -> float:
        """The slowest of the edges between two nodes; edges inside a node do not count."""
        apart = here != there
        return float(np.array(self.between)[here[apart], there[apart]].min())


@dataclass(frozen=True)
class Measured:
    """Measurements between the hosts of a cluster."""

    cluster: Cluster
    """The cluster with the median bandwidth in place of its network's."""
    matrix: np.ndarray
    """Bytes per second, row sends to column."""
    file: Path

    def networks(self, timer: StepTimer, planned: Planned, order: Sequence[int]) -> list[Network]:
        """Bandwidths of messages of a layout with node `order[p]` in place p, for each kind of host that has stages."""
        between = tuple(map(tuple, self.matrix[np.ix_(order, order)].tolist()))
        loops = sends_round(planned.plan)
        kinds = timer.kinds(planned.candidate.layout)
        networks, first = [], 0
        for group in kinds or (None,):
            cluster = self.cluster if group is None else self.cluster.uniform(group)
            devices = (self.cluster.hosts if group is None else group.hosts) * self.cluster.gpus_per_host
            links = network_of(cluster, timer.reached(cluster))
            networks.append(MeasuredNetwork(**vars(links), between=between, first=first, devices=devices, loops=loops))
            first += devices
        return networks

    def placed(self, planned: Planned, timer: StepTimer) -> Planned:
        """The layout in the better of the default order and that of annealing, in which hosts stay in their group."""
        traffic = traffic_of(planned.config, planned.plan, self.cluster.gpus_per_host)
        placed = place(traffic, self.matrix, swaps=SWAPS, groups=groups_of(self.cluster))
        default = tuple(range(self.cluster.hosts))
        orders = dict.fromkeys((default, placed.order))
        times = {order: timer.step(planned.candidate.layout, self.networks(timer, planned, order)) for order in orders}
        best = min(times, key=lambda order: times[order].seconds)
        candidate = replace(planned.candidate, time=times[best])
        return replace(planned, candidate=candidate, order=best, default_seconds=times[default].seconds)

    def ranked(self, plans: Sequence[Planned], timer: StepTimer) -> list[Planned]:
        """Layouts in their best places, the fastest first."""
        return sorted((self.placed(planned, timer) for planned in plans), key=lambda planned: planned.candidate.seconds)

    def words(self, best: Planned, number: int) -> list[str]:
        """The order of the nodes, and the time that it saves."""
        assert best.order is not None, "it was placed"
        gain = percent(1 - best.candidate.seconds / best.default_seconds)
        return [
            f"of the bandwidths in {self.file}: {number} layouts placed and timed again with those of their edges",
            f"the best takes {seconds(best.candidate.seconds)} a step, {gain} less than in the default order "
            f"({seconds(best.default_seconds)})",
            "start processes on the nodes in this order: " + " ".join(map(str, best.order)),
        ]


def measured(cluster: Cluster, hardware: HardwareModel | None) -> Measured | None:
    """The measured bandwidths that the cluster's YAML names; None where it names no file. Raises `UserError`."""
    if cluster.bandwidth_file is None:
        return None
    matrix = read_bandwidth(cluster.bandwidth_file, cluster)
    if cluster.hosts == 1:
        return None
    reached = (hardware_of(cluster.gpu) if hardware is None else hardware).network_share
    source = f"the median of {cluster.bandwidth_file}"
    owner = np.array(groups_of(cluster))
    apart = ~np.eye(cluster.hosts, dtype=bool)

    def median(link: Link, chosen: np.ndarray) -> Link:
        """The wire bandwidth at which large messages reach the measured one."""
        if not chosen.any():
            return link
        return replace(link, bandwidth=float(np.median(matrix[chosen])) / reached, source=source)

    groups = tuple(
        replace(group, network=median(group.network, np.outer(owner == index, owner == index) & apart))
        for index, group in enumerate(cluster.groups)
    )
    between = cluster.written_between
    if len(groups) > 1:
        between = median(cluster.between, owner[:, None] != owner[None, :])
    return Measured(replace(cluster, groups=groups, written_between=between), matrix, cluster.bandwidth_file)
