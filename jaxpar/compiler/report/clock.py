"""Seconds: a GPU of the catalogue as a roofline, and a collective on the links of a cluster."""

from __future__ import annotations

from collections import Counter

from jaxpar.compiler.program.attribution import Movement
from jaxpar.compiler.program.costs import Roofline
from jaxpar.compiler.program.groups import groups_of
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.cluster import Cluster


def roofline_of(gpu: GPU) -> Roofline:
    """The datasheet's peaks. Where tensor cores have no TF32 (before Ampere), float32 takes the plain units."""
    peaks = {str(kind): peak for kind, peak in gpu.peaks.items()}
    peaks.setdefault("tensorfloat32", peaks["float32"])
    return Roofline(peaks, peaks["float32"], gpu.hbm_bandwidth)


def transfer_seconds(movement: Movement, cluster: Cluster) -> float:
    """Least time of one execution: the bytes that a GPU sends over the bandwidth of its link, latency left out.

    A ring over several hosts runs through every GPU of the group in each; NCCL lays as many rings as there are network
    cards, so `g` GPUs of a group in one host share `g` cards, up to the bandwidth inside the host. Of an all-to-all,
    what stays in the host and what leaves it go at the same time. A permutation between hosts takes one card.
    """
    if movement.transfer.channel == "host":
        return movement.operand_bytes / cluster.host_bandwidth
    inside, between = cluster.bandwidth(crosses_nodes=False), cluster.bandwidth(crosses_nodes=True)
    if not movement.crosses_nodes:
        return movement.sent_bytes / inside
    together = _in_one_host(movement, cluster)
    if movement.kind in ("all-to-all", "ragged-all-to-all"):
        to_each = movement.operand_bytes / movement.ranks
        return max((movement.ranks - together) * to_each / between, (together - 1) * to_each / inside)
    if movement.kind in ("collective-permute", "collective-broadcast", "send", "recv"):
        return movement.sent_bytes / between
    return movement.sent_bytes / min(inside, together * between)


def _in_one_host(movement: Movement, cluster: Cluster) -> int:
    """The least number of GPUs that a group has in one of its hosts."""
    rows = groups_of(movement.transfer.inner, cluster.devices).rows
    return min(min(Counter(device // cluster.gpus_per_host for device in row).values()) for row in rows)
