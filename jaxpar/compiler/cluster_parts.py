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
    return cluster if taken is None else part_of(cluster, cluster.devices - taken)


def part_of(cluster: Cluster, devices: int) -> Cluster:
    """A part of a cluster with a number of devices: of one host, or of several full hosts. Raises `UserError`."""
    group, *others = cluster.groups
    each = min(devices, cluster.gpus_per_host)
    if devices < 1 or devices % each or others:
        raise UserError(
            f"rl.sampler.devices: {devices} of {plural(cluster.devices, 'device')} would be one side; expected whole "
            f"hosts of {cluster.gpus_per_host}, or a share of one host, of a single kind"
        )
    groups = (replace(group, hosts=devices // each),)
    return replace(cluster, name=f"{devices} GPUs", groups=groups, gpus_per_host=each)
