"""Parts of a cluster: of a smaller job, of a training step, and of a sampler beside it."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config import Config, UserError
from jaxpar.hardware.cluster import Cluster
from jaxpar.pages.units import plural


def is_reinforcement(config: Config) -> bool:
    """Whether a run draws answers and learns from them."""
    return config.data.source == "prompts"


def training_part(config: Config, cluster: Cluster) -> Cluster:
    """The devices of a cluster that train: those that `rl.sampler.devices` leaves. Raises `UserError`."""
    taken = config.rl.sampler.devices
    return cluster if taken is None else share_of_hosts(cluster, cluster.devices - taken)


def share_of_hosts(cluster: Cluster, devices: int) -> Cluster:
    """A number of a cluster's devices, as many of each host: of the step or of the sampler beside it. Raises
    `UserError`."""
    each, rest = divmod(devices, cluster.hosts)
    if rest or not 0 < each < cluster.gpus_per_host or len(cluster.groups) > 1:
        raise UserError(
            f"rl.sampler.devices: {devices} of {plural(cluster.devices, 'device')} would be one side; expected as many "
            f"of each of {plural(cluster.hosts, 'host')} of a single kind, which has {cluster.gpus_per_host}, and one "
            "left"
        )
    return replace(cluster, name=f"{devices} GPUs", gpus_per_host=each)


def part_of(cluster: Cluster, devices: int) -> Cluster:
    """A part of a cluster with a number of devices: of one host, or of several full hosts."""
    each = min(devices, cluster.gpus_per_host)
    (group,) = cluster.groups
    groups = (replace(group, hosts=devices // each),)
    return replace(cluster, name=f"{devices} GPUs", groups=groups, gpus_per_host=each)
