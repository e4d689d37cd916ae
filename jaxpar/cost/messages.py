"""Seconds of collectives: a message's start, the hops of a ring, and its bytes at the slowest level's bandwidth.

An all-reduce over several hosts takes trees where they are faster, as NCCL chooses: with many ranks a ring's hops take
longer than its bytes, and what trees reach does not fall with the number of hosts as a ring's bandwidth does.

Levels are a host, the network between hosts, and the uplinks of a pod, which may be oversubscribed. A ring visits one
pod after another, and so leaves each of them once, however many of its ranks are in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, log2
from typing import Annotated

from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.tables import NOTHING, Table, Tables
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.sources import cited

UNSWITCHED_LINKS: Annotated[dict[int, float], cited("NVIDIA's whitepaper of the DGX-1")] = {
    2: 1 / 6,
    4: 4 / 6,
}
"""Share of a V100's six NVLinks that rings of two and four GPUs can use in a DGX-1, whose links go point to point."""

TREE: Annotated[float, cited("NCCL's own cost model, src/graph/tuning.cc")] = 0.92
"""The share of a ring's bandwidth between two hosts that trees reach."""


@dataclass(frozen=True)
class Leaving:
    """The share of a group of ranks of the uplinks of the pods that it spans."""

    cards: float
    """Cards of a pod for each of the messages that leave it at the same time."""
    members: int
    """Ranks of the group in a pod."""
    oversubscription: float
    """Bandwidth of a pod's network cards over that of its uplinks."""

    def lane(self, card: float) -> float:
        """Bytes per second of each of the messages that leave a pod, where a card sends `card`."""
        return card * self.cards / self.oversubscription


@dataclass(frozen=True)
class Ring:
    """A group of ranks that share a collective, and the links between them."""

    ranks: int
    hosts: int
    """Hosts that they sit in."""
    inside: float
    """Bytes per second that a rank sends to the next of its host, reached by large messages."""
    across: float
    """Bytes per second that the members of a host send to the next host together; infinite for one host."""
    card: float
    """Bytes per second that one member sends to another host over its own card; infinite for one host."""
    latency: float
    """Seconds until a message has gone round the ring once."""
    hop: float
    """Seconds of its slowest hop."""
    start: float
    """Seconds before anything is sent."""
    leaving: Leaving | None = None
    """None inside one pod."""
    measured: Tables = NOTHING
    """Measured times of messages of groups like it."""
    tree_latency: float = inf
    """Seconds up and down two trees over the hosts, with a chain of the ranks of each, which an all-reduce may take in
    place of the ring, half in each; infinite in one host."""
    tree_across: float = inf
    """Bytes per second of these, as `across`."""

    def _seconds(self, kind: str, size: float, formula: Callable[[float], float]) -> float:
        """Seconds of a message of so many bytes: as measured, near sizes that were, else by the formula."""
        if self.ranks == 1 or size == 0:
            return 0.0
        return self.measured.seconds(Table(kind, (self.ranks, self.hosts)), (size,), formula)

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the ring."""
        return self._slowest(self.across)

    def _slowest(self, across: float) -> float:
        """Bytes per second of the slowest level, with so many from host to host."""
        return min(self.inside, across, self._lane)

    @property
    def _lane(self) -> float:
        """Bytes per second from one pod to the next; infinite in one pod."""
        return inf if self.leaving is None else self.leaving.lane(self.card)

    def gather(self, full_bytes: float) -> float:
        """All-gather that ends with `full_bytes` on each rank; the same as a reduce-scatter that starts with them."""
        formula = lambda full_bytes: (
            self.start + self.latency + full_bytes * (self.ranks - 1) / self.ranks / self.bandwidth
        )
        return self._seconds("gather", full_bytes, formula)

    def reduce(self, full_bytes: float) -> float:
        """All-reduce of `full_bytes`: scatter and gather in one message, or trees where these are faster."""
        return self._seconds("all_reduce", full_bytes, self._reduce)

    def _reduce(self, full_bytes: float) -> float:
        moved = 2 * full_bytes * (self.ranks - 1) / self.ranks
        by_ring = 2 * self.latency + moved / self.bandwidth
        by_trees = self.tree_latency + moved / (TREE * self._slowest(self.tree_across))
        return self.start + min(by_ring, by_trees)

    def exchange(self, full_bytes: float) -> float:
        """All-to-all in which each rank holds `full_bytes`, an equal part for every rank.

        No part is for two ranks: parts for other hosts leave over the sender's own card, beside those that stay, and
        those for other pods over the sender's share of the uplinks.
        """
        return self._seconds("all_to_all", full_bytes, self._exchange)

    def _exchange(self, full_bytes: float) -> float:
        mates = self.ranks / self.hosts
        stays, leaves = full_bytes * (mates - 1) / self.ranks, full_bytes * (self.ranks - mates) / self.ranks
        longest = max(stays / self.inside, leaves / self.card)
        if self.leaving is not None:
            far = full_bytes * (self.ranks - self.leaving.members) / self.ranks
            longest = max(longest, far * self.leaving.oversubscription / self.card)
        return self.start + self.latency + longest

    def shift(self, part: float) -> float:
        """Every rank sends `part` bytes to its neighbour; all wait for the pair that sits in two hosts (one card) or
        in two pods."""
        formula = lambda part: self.start + self.hop + part / min(self.inside, self.card, self._lane)
        return self._seconds("permute", part, formula)


@dataclass(frozen=True)
class Network:
    """The links of a cluster, and the share of their bandwidth that collectives reach."""

    per_host: int
    """GPUs of a host."""
    inside: float
    """Bytes per second of the link inside a host."""
    inside_latency: float
    outside: float
    """Bytes per second of a GPU's share of the network."""
    outside_latency: float
    switched: bool
    """Whether all GPUs of a host reach each other at full speed."""
    model: HardwareModel
    edge: float = inf
    """Bytes per second of the slowest link that a pipeline crosses, where that is not `outside`: between groups."""
    edge_latency: float = 0.0
    per_pod: int | None = None
    """GPUs of a pod; None if all are in one, or if its uplinks carry as much as its network cards."""
    oversubscription: float = 1.0
    """Bandwidth of a pod's network cards over that of its uplinks."""

    def ring(self, ranks: int, stride: int) -> Ring:
        """The group of `ranks` devices of which each is `stride` devices after the one before.

        Inside a host a ring runs at the share of its link that large messages reach. Between hosts, the members of a
        host share the traffic of gathers and reductions: each byte crosses to the next host once, over the
        network cards of all of them, and other groups of the same axis, one for each other device of the host, use
        their own.
        """
        return self.group(ranks, max(1, min(ranks, self.per_host // stride)), self.leaving(ranks, stride))

    def leaving(self, ranks: int, stride: int) -> Leaving | None:
        """The share of a group of `ranks` devices, each `stride` after the one before, of the uplinks of its pods.

        Pods are filled in the order of devices, so that `stride` rings pass from a pod to the next. A group that would
        fit but lies across a border, since pods are no multiple of it, counts as half in each pod.
        """
        if self.per_pod is None or ranks == 1 or self.per_pod % (ranks * stride) == 0:
            return None
        fits = ranks * stride <= self.per_pod
        members = ranks // 2 if fits else max(1, self.per_pod // stride)
        return Leaving(max(1.0, self.per_pod / stride), members, self.oversubscription)

    def group(self, ranks: int, per_host: int, leaving: Leaving | None = None) -> Ring:
        """The same of `ranks` devices of which `per_host` are in each host."""
        hosts = -(-ranks // per_host)
        bandwidth = self.inside * self.model.node_share
        if not self.switched:
            bandwidth *= UNSWITCHED_LINKS.get(ranks, 1.0)
        card = self.outside * self.share(hosts) if hosts > 1 else inf
        across = card * per_host
        if per_host == 1:
            bandwidth = inf
        latency = (ranks - hosts) * self.inside_latency + (hosts - 1) * self.outside_latency
        hop = self.outside_latency if hosts > 1 else self.inside_latency
        start = self.model.message_seconds
        measured = self.model.measured if leaving is None else NOTHING  # groups were measured in one pod
        trees = inf, inf
        if hosts > 1:  # each host sends to three others at most, whatever their number
            up_and_down = 2 * ((per_host - 1) * self.inside_latency + log2(hosts) * self.outside_latency)
            trees = up_and_down, self.outside * self.share(2) * per_host
        return Ring(ranks, hosts, bandwidth, across, card, latency, hop, start, leaving, measured, *trees)

    def stages(self, stride: int, ranks: int) -> Ring:
        """The group of all stages of a pipeline, of which neighbours are `stride` devices apart; it waits for the
        slowest link that the pipeline crosses."""
        ring = self.ring(ranks, stride)
        if ring.hosts == 1:
            return ring
        slowest = self.edge * self.share(ring.hosts)
        members, edge = ring.ranks / ring.hosts, self.edge * self.share(2)
        across, card = min(ring.across, slowest * members), min(ring.card, slowest)
        trees = min(ring.tree_across, edge * members)
        measured = ring.measured if card == ring.card else NOTHING
        return replace(ring, across=across, card=card, measured=measured, tree_across=trees)

    def share(self, hosts: int) -> float:
        """The share of its link that a collective over so many hosts reaches: less with each doubling, since more of
        its paths share switches, and all wait for the slowest."""
        return self.model.network_share / (1 + self.model.network_decline * log2(max(1.0, hosts / 2)))

    def pair(self, stride: int, ranks: int) -> Ring:
        """Two neighbouring stages of a pipeline of `ranks`: between hosts as soon as any edge crosses."""
        start = self.model.message_seconds
        if stride * ranks > self.per_host:
            card = min(self.outside, self.edge) * self.model.network_share
            hop, leaving = max(self.outside_latency, self.edge_latency), self.leaving(ranks, stride)
            measured = self.model.measured if leaving is None and self.edge >= self.outside else NOTHING
            return Ring(2, 2, inf, card, card, hop, hop, start, leaving, measured=measured)
        bandwidth, hop = self.inside * self.model.node_share, self.inside_latency
        return Ring(2, 1, bandwidth, inf, inf, hop, hop, start, measured=self.model.measured)


def network_of(cluster: Cluster, model: HardwareModel) -> Network:
    """The links of a cluster, at the shares that `model` gives."""
    inside, outside = cluster.link(False), cluster.link(True)
    pods = cluster.pods
    apart = pods is not None and pods.oversubscription > 1 and pods.hosts < cluster.hosts
    return Network(
        cluster.gpus_per_host, inside.bandwidth, inside.latency, outside.bandwidth, outside.latency,
        cluster.gpu.compute_capability >= (8, 0), model, cluster.between.bandwidth, cluster.between.latency,
        pods.hosts * cluster.gpus_per_host if pods is not None and apart else None,
        1.0 if pods is None else pods.oversubscription,
    )  # fmt: skip
