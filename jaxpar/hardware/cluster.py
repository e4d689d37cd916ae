"""Clusters: hosts of GPUs, and what links them. Read from text like `h800:32x8` or from a YAML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

from jaxpar.config.bounds import RANKS
from jaxpar.config.errors import UserError
from jaxpar.config.reading.yaml_file import read_record
from jaxpar.config.spelling import named, quoted
from jaxpar.hardware.catalogue import GPU, gpu_named
from jaxpar.hardware.links import HOST_SHARE, MEASURED, Link
from jaxpar.hardware.sources import assumed
from jaxpar.pages.units import GIB, TIB, rate

HOST_MEMORY: Annotated[int, assumed("host_memory of the cluster's YAML sets it")] = TIB
"""Default bytes of a host's memory for its GPUs, where it is not on their module (`GPU.host_bytes`)."""
MOST_OVERSUBSCRIBED = 1000
"""The largest ratio that a file may have."""
FORM = "expected gpu:hosts x gpus, as in h100:1x8, or the path of a .yaml file"


@dataclass(frozen=True)
class Group:
    """Hosts that are alike."""

    name: str
    gpu: GPU
    hosts: int
    node: Link
    """Link between the GPUs of a host."""
    network: Link
    """Link between hosts: the share of one GPU."""
    host: Link
    """Link between a GPU and its host's memory."""
    host_memory: int = HOST_MEMORY
    """Bytes of a host's memory that its GPUs may have pinned."""


@dataclass(frozen=True)
class Pods:
    """Hosts whose switches reach each other at full bandwidth, and the thinner network between such pods."""

    hosts: int
    """Hosts of a pod; the last one may have fewer."""
    oversubscription: float
    """Bandwidth of a pod's network cards over that of its uplinks, 1 or more."""


@dataclass(frozen=True)
class Cluster:
    """Groups of hosts, each host with the same number of GPUs. Most clusters have one group.

    GPUs are numbered host by host, in the order of the groups; a mesh takes them in this order (`mesh.build_mesh`).
    """

    name: str
    """Name as the user wrote it."""
    gpus_per_host: int
    groups: tuple[Group, ...]
    bandwidth_file: Path | None = None
    """Measured bandwidth between hosts, for placing ranks (`jaxpar.planner.placement.placement`)."""
    written_between: Link | None = None
    """Link between hosts of two groups, if stated: networks of different kinds may be connected by a third one."""
    pods: Pods | None = None
    """Hosts are in pods in their order; None if the network has full bandwidth between all of them."""

    @cached_property
    def gpu(self) -> GPU:
        """The GPU; in a heterogeneous cluster the slowest, which all wait for and whose program runs on every GPU."""
        return min(self.gpus, key=lambda gpu: (gpu.compute_capability, gpu.training_peak, gpu.device_bytes))

    @cached_property
    def device_bytes(self) -> int:
        """Memory of a GPU; in a heterogeneous cluster the least, which decides what fits."""
        return min(gpu.device_bytes for gpu in self.gpus)

    @property
    def gpus(self) -> tuple[GPU, ...]:
        """The distinct kinds of GPU."""
        return tuple({group.gpu.short: group.gpu for group in self.groups}.values())

    @cached_property
    def training_peak(self) -> float:
        """FLOP/s in 16 bits of a GPU; in a heterogeneous cluster the mean."""
        return sum(group.hosts * group.gpu.training_peak for group in self.groups) / self.hosts

    @cached_property
    def is_heterogeneous(self) -> bool:
        """Whether hosts of its groups differ in more than the name, or are further apart than those of one."""
        first, *others = (replace(group, name="", hosts=1) for group in self.groups)
        return any(other != first for other in others) or (bool(others) and self.written_between is not None)

    @property
    def between(self) -> Link:
        """The link between hosts of two groups: the given one, else the slower network of the two."""
        slowest = min((group.network for group in self.groups), key=lambda link: link.bandwidth)
        return slowest if self.written_between is None else self.written_between

    def uniform(self, group: Group) -> Cluster:
        """A cluster of the same size in which all hosts are like those of `group`; links between groups stay."""
        return replace(self, groups=(replace(group, hosts=self.hosts),), written_between=self.between)

    def stage_groups(self, stages: int) -> tuple[Group, ...] | None:
        """The group of each of `stages` pipeline stages; None if a stage would span groups or part of a host."""
        each, over = divmod(self.devices, stages)
        sizes = [group.hosts * self.gpus_per_host for group in self.groups]
        if over or any(size % each for size in sizes):
            return None
        return tuple(group for group, size in zip(self.groups, sizes, strict=True) for _ in range(size // each))

    @property
    def hosts(self) -> int:
        """Hosts of all groups."""
        return sum(group.hosts for group in self.groups)

    @property
    def devices(self) -> int:
        """GPUs of the whole cluster."""
        return self.hosts * self.gpus_per_host

    def host_of(self, device: int) -> int:
        """The host of a GPU, both counted from 0 in mesh order."""
        if not 0 <= device < self.devices:
            raise IndexError(f"device {device} of {self.devices}")
        return device // self.gpus_per_host

    def crosses_nodes(self, devices: Iterable[int]) -> bool:
        """Whether these GPUs sit in more than one host."""
        return len({self.host_of(device) for device in devices}) > 1

    def link(self, crosses_nodes: bool) -> Link:
        """The link that a collective runs at: between hosts, or inside one; of several groups the slowest."""
        links = [group.network if crosses_nodes else group.node for group in self.groups]
        if crosses_nodes and len(self.groups) > 1:
            links.append(self.between)
        return min(links, key=lambda link: link.bandwidth)

    def bandwidth(self, crosses_nodes: bool) -> float:
        """Bytes per second that each GPU can send, and receive at the same time; inside a host or between hosts."""
        return self.link(crosses_nodes).bandwidth

    def latency(self, crosses_nodes: bool) -> float:
        """Seconds that one hop of a ring adds; inside a host or between hosts."""
        return self.link(crosses_nodes).latency

    @property
    def host_bandwidth(self) -> float:
        """Bytes per second and direction that copies between a GPU and its host's memory reach."""
        reached = lambda link: link.bandwidth * (1.0 if link.source == MEASURED else HOST_SHARE)
        return min(reached(group.host) for group in self.groups)

    def host_limit(self, asked: int | None = None) -> int:
        """Bytes of its host's memory that a GPU may have pinned: what is `asked` (`memory.host_limit`), else its share.

        Of several groups that with the least.
        """
        return min(group.host_memory for group in self.groups) // self.gpus_per_host if asked is None else asked

    def describe(self) -> str:
        """The numbers behind every prediction, one line per group."""
        lines = []
        for group in self.groups:
            links = (("in a host", group.node), ("between hosts", group.network), ("to host memory", group.host))
            shown = ", ".join(f"{where} {rate(link.bandwidth)} ({link.name}: {link.source})" for where, link in links)
            lines.append(f"{group.hosts} x {self.gpus_per_host} {group.gpu.name}; per GPU and direction: {shown}")
        if self.written_between is not None and len(self.groups) > 1:
            lines.append(f"between groups: {rate(self.between.bandwidth)} ({self.between.source})")
        if self.pods is not None:
            hosts, ratio = self.pods.hosts, self.pods.oversubscription
            count = f"{-(-self.hosts // hosts)} pods of {hosts} hosts" if hosts < self.hosts else "one pod"
            lines.append(f"{count}, oversubscribed {ratio:g} to 1 between pods")
        return "\n".join(lines)


def parse_cluster(text: str) -> Cluster:
    """A cluster from `gpu:hosts x gpus` (`h100:1x8`, spaces allowed), or from the YAML file that `text` is the path of.

    Raises:
        UserError: one sentence about what is wrong, with the file and line where there is one.
    """
    if text.endswith((".yaml", ".yml")):
        return read_cluster(Path(text))
    match = re.fullmatch(r"\s*([^:]+?)\s*:\s*(\d{1,9})\s*x\s*(\d{1,9})\s*", text)
    if match is None:
        raise UserError(f"cluster {quoted(text)}: {FORM}")
    hosts, gpus = int(match[2]), int(match[3])
    if hosts < 1 or gpus < 1:
        raise UserError(f"cluster {quoted(text)}: expected at least 1 host and 1 GPU per host")
    if hosts * gpus > RANKS:
        raise UserError(f"cluster {quoted(text)}: {hosts * gpus} GPUs; expected at most {RANKS}")
    try:
        gpu = gpu_named(match[1])
    except UserError as error:
        raise UserError(f"cluster {quoted(text)}: {error}") from None
    return Cluster(f"{gpu.short}:{hosts}x{gpus}", gpus, (_group(gpu.short, gpu, hosts, gpus, _Levels(), text),))


@dataclass(frozen=True)
class _Numbers:
    bandwidth: float
    latency: float | None = None


@dataclass(frozen=True)
class _Levels:
    node: _Numbers | None = None
    network: _Numbers | None = None
    host: _Numbers | None = None


@dataclass(frozen=True)
class _WrittenPods:
    hosts: int
    oversubscription: float = 1.0


@dataclass(frozen=True)
class _WrittenGroup:
    gpu: str
    hosts: int
    levels: _Levels = field(default_factory=_Levels)
    host_memory: float | None = None


@dataclass(frozen=True)
class _WrittenCluster:
    name: str = ""
    gpu: str = ""
    hosts: int = 0
    gpus_per_host: int = 8
    levels: _Levels = field(default_factory=_Levels)
    host_memory: float | None = None
    groups: dict[str, _WrittenGroup] = field(default_factory=dict)
    between: _Numbers | None = None
    bandwidth: str = ""
    pods: _WrittenPods | None = None


def read_cluster(path: Path) -> Cluster:
    """A cluster from a YAML file, documented in docs/cluster-files.md.

    Raises:
        UserError: the file cannot be read, a name is unknown, a number is missing or not above 0.
    """
    written, lines = read_record(_WrittenCluster, path)
    location = lambda key: f"{named(path)}:{lines[key]}" if key in lines else str(path)
    _positive(written.gpus_per_host, "gpus_per_host", location("gpus_per_host"), RANKS)
    if written.groups:
        for key in ("gpu", "hosts", "levels", "host_memory"):
            if key in lines:
                raise UserError(f"{location(key)}: {key}: with groups, each group has its own")
        where = lambda key: location("groups")
        groups = [
            _read_group(name, f"groups.{name}.", group, written.gpus_per_host, where, path)
            for name, group in written.groups.items()
        ]
    else:
        for key in ("gpu", "hosts"):
            if key not in lines:
                raise UserError(f"{named(path)}: the key {key} is missing")
        alone = _WrittenGroup(written.gpu, written.hosts, written.levels, written.host_memory)
        groups = [_read_group(written.gpu, "", alone, written.gpus_per_host, location, path)]
    gpus = written.gpus_per_host * sum(group.hosts for group in groups)
    if gpus > RANKS:
        raise UserError(f"{location('gpus_per_host')}: gpus_per_host: makes {gpus} GPUs; expected at most {RANKS}")
    if written.between is not None and len(groups) < 2:
        raise UserError(
            f"{location('between')}: between: expected two groups or more that it is between, got {len(groups)}"
        )
    _check_numbers(written.between, "between", location("between"))
    measured = path.parent / written.bandwidth if written.bandwidth else None
    if measured is not None and not measured.is_file():
        raise UserError(f"{location('bandwidth')}: bandwidth: there is no file {named(measured)}")
    between = None
    if written.between is not None:
        usual = replace(groups[0].network, name="between groups")
        between = usual.with_bandwidth(written.between.bandwidth, written.between.latency, str(path))
    pods = _read_pods(written.pods, location("pods"))
    return Cluster(written.name or path.stem, written.gpus_per_host, tuple(groups), measured, between, pods)


def _read_pods(written: _WrittenPods | None, location: str) -> Pods | None:
    if written is None:
        return None
    _positive(written.hosts, "pods.hosts", location, RANKS)
    ratio = written.oversubscription
    if not 1 <= ratio <= MOST_OVERSUBSCRIBED:
        raise UserError(
            f"{location}: pods.oversubscription: expected a number from 1 to {MOST_OVERSUBSCRIBED}, the bandwidth of a "
            f"pod's network cards over that of its uplinks, got {ratio:g}"
        )
    return Pods(written.hosts, ratio)


def _read_group(
    name: str, prefix: str, written: _WrittenGroup, gpus: int, location: Callable[[str], str], path: Path
) -> Group:
    """A group with its numbers checked; `prefix` comes before its keys, and `location` states where a key stands."""
    _positive(written.hosts, f"{prefix}hosts", location("hosts"), RANKS)
    for level, numbers in vars(written.levels).items():
        _check_numbers(numbers, f"{prefix}levels.{level}", location("levels"))
    if written.host_memory is not None:
        _positive(written.host_memory, f"{prefix}host_memory", location("host_memory"))
    try:
        gpu = gpu_named(written.gpu)
    except UserError as error:
        raise UserError(f"{location('gpu')}: {prefix}gpu: {error}") from None
    group = _group(name, gpu, written.hosts, gpus, written.levels, str(path))
    return group if written.host_memory is None else replace(group, host_memory=int(written.host_memory * GIB))


def _group(name: str, gpu: GPU, hosts: int, gpus: int, levels: _Levels, source: str) -> Group:
    """A group of hosts with `gpus` GPUs each; `levels` overrides the GPU's default links."""

    def link(usual: Link, numbers: _Numbers | None) -> Link:
        return usual if numbers is None else usual.with_bandwidth(numbers.bandwidth, numbers.latency, source)

    return Group(
        name=name,
        gpu=gpu,
        hosts=hosts,
        node=link(gpu.node, levels.node),
        network=link(gpu.network, levels.network),
        host=link(gpu.host, levels.host),
        host_memory=HOST_MEMORY if gpu.host_bytes is None else gpus * gpu.host_bytes,
    )


def _check_numbers(numbers: _Numbers | None, key: str, location: str) -> None:
    for quantity, value in vars(numbers or _Numbers(1)).items():
        if value is not None:
            _positive(value, f"{key}.{quantity}", location)


def _positive(value: float, key: str, location: str, most: float = 1e15) -> None:
    if value <= 0:
        raise UserError(f"{location}: {key}: expected a number above 0, got {value:g}")
    if value > most:
        raise UserError(f"{location}: {key}: expected a number of at most {most:g}, got {value:g}")
