"""This machine as a cluster: its GPUs, or virtual devices of its CPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

from jaxpar.config import UserError
from jaxpar.config.spelling import quoted
from jaxpar.distributed.devices import Device, devices_per_node
from jaxpar.hardware.catalogue import GPU, gpu_of
from jaxpar.hardware.cluster import Cluster, Group, parse_cluster
from jaxpar.hardware.host import host_memory
from jaxpar.hardware.links import Link
from jaxpar.hardware.sources import assumed

CPU = "cpu"
"""Short name of a virtual device."""

CORE_FLOPS: Annotated[float, assumed("two 8-wide FMA units at about 1.6 GHz, to set the scale")] = 50e9
"""Float32 FLOP/s of a core."""
MACHINE_BANDWIDTH: Annotated[float, assumed("two channels of DDR4")] = 20e9
"""Bytes a second of a machine's memory."""
LINK_SECONDS: Annotated[float, assumed("processes that exchange messages through memory, to set the scale")] = 50e-6
"""Seconds before a message between virtual devices sends anything."""


def cpu_cluster(devices: int, hosts: int = 1) -> Cluster:
    """`devices` virtual CPU devices on each of `hosts` machines like this one, sharing its cores and memory.

    Numbers are nominal, or those of a profile (`calibrate`). All devices of a machine compute at the same time, so each
    has a share of the cores and of the memory's bandwidth.
    """
    cores = os.cpu_count() or 1
    memory = host_memory()
    flops, bandwidth = CORE_FLOPS * cores / devices, MACHINE_BANDWIDTH / devices
    link = Link("memory", bandwidth / 2, LINK_SECONDS, "the machine's memory")
    gpu = GPU(
        short=CPU,
        name=f"CPU ({cores} cores shared by {devices} virtual devices)",
        device_kinds=("cpu",),
        peaks=MappingProxyType(dict.fromkeys(("float32", "tensorfloat32", "bfloat16", "float16"), flops)),
        hbm_bytes=memory // devices,
        device_bytes=memory // devices,
        hbm_bandwidth=bandwidth,
        compute_capability=(0, 0),
        multiprocessors=1,
        node=link,
        host=link,
        network=link,
        source="this machine; nominal",
    )
    return Cluster(f"{CPU}:{hosts}x{devices}", devices, (Group(CPU, gpu, hosts, link, link, link, memory),))


def cluster_at_hand(devices: Sequence[Device]) -> Cluster:
    """The devices of this job as a cluster. Raises `UserError` for a GPU not in the catalogue, or for several kinds."""
    each = devices_per_node(devices)
    if devices[0].platform == "cpu":
        return cpu_cluster(each, len(devices) // each)
    kinds = {device.device_kind for device in devices}
    if len(kinds) > 1:
        raise UserError(
            f"parallel: auto plans for GPUs of one kind, and this job has {_names(kinds)}; describe the hosts in a "
            "cluster's YAML (docs/cluster-files.md), plan with python -m jaxpar.plan --cluster FILE, and train --plan"
        )
    gpu = gpu_of(devices[0].device_kind)
    if gpu is None:
        raise UserError(
            f"parallel: auto needs the speed of {devices[0].device_kind}, which is not in the catalogue; write "
            "a layout, for example parallel: {fsdp: -1}"
        )
    return parse_cluster(f"{gpu.short}:{len(devices) // each}x{each}")


def check_stage_kinds(stages: Sequence[Mapping[str, Any]], pipe: int, devices: Sequence[Device]) -> None:
    """Each stage of a plan for GPUs of several kinds must be on GPUs of the kind that it was planned for.

    Args:
        stages: those of plan.json, by group of hosts.
        pipe: pipeline ranks.
        devices: those of the whole job. On CPUs, where a plan may be tried out, nothing is compared.

    Raises:
        UserError: a stage would be on another kind; the message names it.
    """
    if len({stage["gpu"] for stage in stages}) < 2 or devices[0].platform == "cpu" or len(devices) % pipe:
        return  # the mesh reports too few or too many devices
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))  # in mesh order
    each = len(ordered) // pipe
    for rank in range(pipe):
        planned = [stage for stage in stages if stage["first"] <= rank][-1]
        kinds = {device.device_kind for device in ordered[rank * each : (rank + 1) * each]}
        if _names(kinds) != planned["gpu"]:
            raise UserError(
                f"--plan: stage {rank} is planned for {planned['gpu']} (group {planned['group']}) and would be on "
                f"{_names(kinds)}; start processes in the order of the cluster's groups (docs/cluster-files.md)"
            )


def _names(kinds: Iterable[str]) -> str:
    """Their names in the catalogue, where it has them."""
    return " and ".join(sorted({kind if (gpu := gpu_of(kind)) is None else gpu.name for kind in kinds}))


def named_cluster(text: str) -> Cluster:
    """Like `parse_cluster`, and also accepts `cpu:hosts x devices`: machines like this one. Raises `UserError`."""
    name, _, sizes = text.partition(":")
    if name.strip().lower() != CPU:
        return parse_cluster(text)
    hosts, cross, devices = sizes.replace(" ", "").partition("x")
    if not (cross and hosts.isdigit() and devices.isdigit() and int(hosts) and int(devices)):
        raise UserError(f"cluster {quoted(text)}: expected cpu:hosts x devices, as in cpu:1x8")
    return cpu_cluster(int(devices), int(hosts))


def is_cpu(cluster: Cluster) -> bool:
    """Whether a cluster is of CPUs."""
    return cluster.gpu.short == CPU
