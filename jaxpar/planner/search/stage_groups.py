"""The assignment of stages to hosts, on clusters with hosts of several kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import join_or
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import Cluster, Group
from jaxpar.pages.units import plural
from jaxpar.pipeline.schedules import SCHEDULES
from jaxpar.pipeline.table import loop_placement, v_placement

type Lengths = tuple[int, ...]
"""Layers of each chunk, in the order of the model."""


def ranks_of(layout: Layout) -> tuple[int, ...]:
    """The pipeline rank of each chunk, in the order of the model."""
    if SCHEDULES[layout.schedule].placement == "v":
        return tuple(v_placement(layout.pipe))
    return tuple(loop_placement(layout.pipe, layout.virtual_stages))


@dataclass(frozen=True)
class StagesOfGroup:
    """Consecutive pipeline ranks on one group of hosts."""

    group: Group
    first: int
    """The first pipeline rank of the group."""
    ranks: int
    layers: tuple[int, ...]
    """Layers of each rank, over all its chunks."""

    def __str__(self) -> str:
        last = self.first + self.ranks - 1
        stages = f"stage {self.first}" if self.ranks == 1 else f"stages {self.first} to {last}"
        hosts = plural(self.group.hosts, "host")
        return f"{stages}: {self.group.name} ({hosts}, {self.group.gpu.name}), {number_words(self.layers)} layers each"


def number_words(lengths: Sequence[int]) -> str:
    """`3`, or `3 to 4`."""
    least, most = min(lengths), max(lengths)
    return f"{most}" if least == most else f"{least} to {most}"


def stages_by_group(cluster: Cluster, pipe: int, rank_of: Sequence[int], lengths: Lengths) -> list[StagesOfGroup]:
    """The hosts of each stage, where hosts differ and each stage is on one kind; else nothing."""
    groups = cluster.stage_groups(pipe) if cluster.is_heterogeneous and pipe > 1 else None
    if groups is None:
        return []
    layers = [sum(n for n, owner in zip(lengths, rank_of, strict=True) if owner == rank) for rank in range(pipe)]
    stages = []
    for group in cluster.groups:
        ranks = [rank for rank in range(pipe) if groups[rank] == group]
        stages.append(StagesOfGroup(group, ranks[0], len(ranks), tuple(layers[rank] for rank in ranks)))
    return stages


def check_stages(cluster: Cluster, fixed: Mapping[str, str]) -> None:
    """Raises `UserError` where the fixed number of stages does not divide the groups into whole stages."""
    stages = int(fixed.get("pipe", 1))
    if stages == 1 or not cluster.is_heterogeneous or cluster.stage_groups(stages) is not None:
        return
    each = cluster.gpus_per_host
    whole = [n for n in range(2, cluster.devices + 1) if cluster.stage_groups(n) is not None]
    if stages > cluster.devices:
        raise UserError(
            f"--fix pipe={stages}: there are {cluster.devices} GPUs, and a stage needs at least one; expected "
            f"{join_or(map(str, whole[:8]))}"
        )
    size = cluster.devices / stages
    group = next((one for one in cluster.groups if (one.hosts * each) % size), cluster.groups[0])
    raise UserError(
        f"--fix pipe={stages}: the {group.hosts} x {each} GPUs of group {group.name} are not a whole number of stages "
        f"of {size:g} GPUs, and each stage is on one kind of host; expected {join_or(map(str, whole[:8]))}"
    )
