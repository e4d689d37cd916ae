"""Seconds of a compiled program's kernels and transfers, by the model of GPUs and links that predicts steps."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from jaxpar.compiler.program.attribution import Movement
from jaxpar.compiler.program.costs.matmuls import Attention, Product
from jaxpar.compiler.program.costs.ops import Cost
from jaxpar.compiler.program.hlo.groups import Groups, groups_of
from jaxpar.compiler.program.hlo.records import ProgramError
from jaxpar.cost.grouped import Products
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.messages import Leaving, Ring, network_of
from jaxpar.cost.operations import Device, device_of
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.cluster import Cluster

ITEM_BYTES = {"float8": 1, "bfloat16": 2, "float16": 2}
"""Bytes of a number in each arithmetic; 4 in the others."""
PEAKS = {1: "float8_peak", 2: "peak", 4: "float32_peak"}
"""Fields of `Device` by bytes of a number."""


@dataclass(frozen=True)
class StepTimer:
    """Predicts the seconds of one execution of an op in a program for `gpu`, on the links of `cluster`."""

    gpu: GPU
    cluster: Cluster
    model: HardwareModel
    """The fitted parameters of the GPU and its links."""

    @cached_property
    def device(self) -> Device:
        """The GPU, as it times the operations of a layout."""
        return device_of(self.gpu, self.model)

    def kernel(self, cost: Cost) -> float:
        """A kernel; 0 for a transfer. Raises `ProgramError` for arithmetic that the GPU lacks."""
        return self.work(cost.products, cost.vector_flops, cost.moved_bytes) if cost.computes else 0.0

    def work(self, products: Sequence[Product], vector_flops: float, moved: float) -> float:
        """A kernel: the longest of what its matrix products, its other arithmetic and its bytes of memory take.

        Products take what those of a layout take, other arithmetic the share of the float32 peak that matmuls reach.
        Launches are left out.
        """
        vector = vector_flops / self.device.matmul_rate(4)
        return max(sum(map(self.product, products)), vector, self.device.bytes_seconds(moved))

    def product(self, product: Product) -> float:
        """A matrix product or an attention, by the functions that time those of a layout."""
        item, shape = ITEM_BYTES.get(product.arithmetic, 4), product.shape
        device = self._multiplying(product.arithmetic, item)
        if shape is None:
            return product.flops / device.matmul_rate(item)
        if isinstance(shape, Attention):
            asked = shape.rows, shape.heads, shape.queries, shape.keys, shape.width, shape.kernels, item
            forward, backward = device.flash(*asked, shape.value_width)
            return shape.backward * backward if shape.backward else forward
        m, n, k, batch, out_bytes, *_ = shape
        if not shape.grouped:
            return device.matmul(int(m), n, int(k), batch, out_bytes, item)
        times = Products(device, batch, item)
        if shape.gradient:
            return times.gradient(k, n, int(m), out_bytes, item)
        return times.matmul(m, n, int(k))

    def _multiplying(self, arithmetic: str, item: int) -> Device:
        """The GPU with the peak of an arithmetic in place of that of its numbers' size, `item` bytes."""
        peaks = {str(kind): peak for kind, peak in self.gpu.peaks.items()}
        peaks.setdefault("tensorfloat32", peaks["float32"])  # before Ampere float32 takes the plain units
        if arithmetic not in peaks:
            raise ProgramError(f"no peak of {self.gpu.name} is known for {arithmetic}")
        return replace(self.device, **{PEAKS[item]: peaks[arithmetic]})

    def transfer(self, movement: Movement) -> float:
        """A transfer: a copy at the bandwidth of the host's link, a collective by the rings of the cost model.

        Of a group that is on several hosts, those in one host share its network cards. The link between groups of hosts
        is taken by messages that cross it alone.
        """
        if movement.transfer.channel == "host":
            return self.copy(movement.operand_bytes)
        groups = groups_of(movement.transfer.inner, self.cluster.devices)
        network = network_of(self._links(groups), self.model)
        leaving = None if network.per_pod is None else self._leaving(groups, network.per_pod)
        ring = network.group(movement.ranks, self.in_one_host(movement), leaving=leaving)
        return _over(ring, movement.kind, movement.operand_bytes, movement.ranks)

    def copy(self, moved: float) -> float:
        """So many bytes between device and host."""
        return moved / self.cluster.host_bandwidth

    def collective(self, kind: str, moved: float, ranks: int, in_one_host: int) -> float:
        """Seconds of a collective with `moved` bytes of input, between ranks of one group of hosts without pods."""
        return _over(network_of(self.cluster, self.model).group(ranks, in_one_host), kind, moved, ranks)

    def in_one_host(self, movement: Movement) -> int:
        """The ranks of a collective's group that share a host, at least."""
        groups, each = groups_of(movement.transfer.inner, self.cluster.devices), self.cluster.gpus_per_host
        return min(min(Counter(device // each for device in row).values()) for row in groups.rows)

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


def _over(ring: Ring, kind: str, moved: float, ranks: int) -> float:
    """Seconds of a collective with `moved` bytes of input."""
    match kind:
        case "all-gather":
            return ring.gather(float(moved * ranks))
        case "reduce-scatter":
            return ring.gather(moved)
        case "all-reduce":
            return ring.reduce(moved)
        case "all-to-all":
            return ring.exchange(moved)
    return ring.shift(moved)
