"""Seconds of a compiled program's kernels and transfers, by the model of GPUs and links that predicts steps."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from jaxpar.compiler.program.attribution import Movement
from jaxpar.compiler.program.costs.ops import Cost
from jaxpar.compiler.program.hlo.groups import Groups, groups_of
from jaxpar.compiler.program.hlo.records import ProgramError, leaves
from jaxpar.cost.hardware_model import HardwareModel, grouped_limit
from jaxpar.cost.messages import Leaving, network_of
from jaxpar.cost.operations import USUAL_ATTENTION, Device, device_of
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.cluster import Cluster

GROUPED = "grouped_matmul_of_"
"""Part of the names of our kernels for grouped matmuls."""


@dataclass(frozen=True)
class StepTimer:
    """Predicts the seconds of one execution of an op in a program for `gpu`, on the links of `cluster`."""

    gpu: GPU
    cluster: Cluster
    model: HardwareModel
    """Parameters of both."""

    def kernel(self, cost: Cost) -> float:
        """A kernel: the longest of what its matrix products, its other arithmetic and its bytes of memory take; 0 for a
        transfer.

        Products run at what large ones reach, other arithmetic at the same share of the float32 peak. Launches are left
        out. Raises `ProgramError` for arithmetic that the GPU lacks.
        """
        if not cost.computes:
            return 0.0
        device = device_of(self.gpu, self.model)
        memory = device.bytes_seconds(cost.read_bytes + cost.written_bytes)
        products = self._products(cost, device) if cost.flops else 0.0
        return max(products, cost.vector_flops / device.matmul_rate(4), memory)

    def _products(self, cost: Cost, device: Device) -> float:
        peaks = {str(kind): peak for kind, peak in self.gpu.peaks.items()}
        peaks.setdefault("tensorfloat32", peaks["float32"])  # before Ampere float32 takes the plain units
        if cost.arithmetic not in peaks:
            raise ProgramError(f"no peak is known for {cost.arithmetic}, which {cost.op.name} multiplies in")
        peak = peaks[cost.arithmetic]
        if cost.pairs:
            return device.fused_attention(cost.flops, cost.pairs, peak, USUAL_ATTENTION, cost.backward)
        share = self.model.float8_share if cost.arithmetic == "float8" else self.model.matmul_share
        rate = peak * share
        if GROUPED in cost.op.op_name:
            columns, item = next(leaves(cost.op.shape)).dims[-1], 1 if cost.arithmetic == "float8" else 2
            rate = min(rate, grouped_limit(device.machine, columns, item))
        return cost.flops / rate

    def transfer(self, movement: Movement) -> float:
        """A transfer: a copy at the bandwidth of the host's link, a collective by the rings of the cost model.

        Of a group that is on several hosts, those in one host share its network cards. The link between groups of hosts
        is taken by messages that cross it alone.
        """
        size = movement.operand_bytes
        if movement.transfer.channel == "host":
            return size / self.cluster.host_bandwidth
        groups = groups_of(movement.transfer.inner, self.cluster.devices)
        network = network_of(self._links(groups), self.model)
        each = self.cluster.gpus_per_host
        in_one_host = min(min(Counter(device // each for device in row).values()) for row in groups.rows)
        leaving = None if network.per_pod is None else self._leaving(groups, network.per_pod)
        ring = network.group(movement.ranks, in_one_host, leaving=leaving)
        match movement.kind:
            case "all-gather":
                return ring.gather(float(size * movement.ranks))
            case "reduce-scatter":
                return ring.gather(size)
            case "all-reduce":
                return ring.reduce(size)
            case "all-to-all":
                return ring.exchange(size)
        return ring.shift(size)

    def _links(self, groups: Groups) -> Cluster:
        """The cluster, with the link between its groups of hosts where a message crosses it."""
        cluster, each = self.cluster, self.cluster.gpus_per_host
        first = list(accumulate((group.hosts * each for group in cluster.groups), initial=0))
        crosses = any(bisect(first, min(row)) != bisect(first, max(row)) for row in groups.rows)
        return cluster if crosses else replace(cluster, written_between=None)

    def _leaving(self, groups: Groups, per_pod: int) -> Leaving | None:
        """The share that groups have of the uplinks of pods of so many GPUs; None if no group is in two pods."""
        rows = [[device // per_pod for device in row] for row in groups.rows]
        edges = rows if groups.permutes else [pair for row in rows for pair in pairwise([*row, row[0]])]
        passed = Counter(source for source, target in edges if source != target)
        if not passed:
            return None
        assert self.cluster.pods is not None, "the network has pods"
        members = min(min(Counter(row).values()) for row in rows if len(set(row)) > 1)
        return Leaving(max(1.0, per_pod / max(passed.values())), members, self.cluster.pods.oversubscription)
