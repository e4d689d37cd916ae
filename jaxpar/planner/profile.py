"""A hardware profile: the tables that `calibrate` measured of a machine, and what the planner takes from them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from jaxpar.config import UserError
from jaxpar.config.bounds import at_least
from jaxpar.config.reading.yaml_file import read_record
from jaxpar.config.reading.yaml_text import to_yaml
from jaxpar.config.spelling import named
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.tables import Row, Table, Tables
from jaxpar.hardware.cluster import Cluster, Group
from jaxpar.hardware.links import MEASURED
from jaxpar.layout.plan_file import LARGEST_NUMBER
from jaxpar.memory.layer_shape import ITEM_BYTES
from jaxpar.planner.machine import CPU, is_cpu

Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"]
Dtype = Literal["float32", "bfloat16", "float16"]
Size = Annotated[int, at_least(1, LARGEST_NUMBER)]
Measured = Annotated[float, at_least(1e-12, LARGEST_NUMBER)]
Numbers = dict[str, Annotated[float, at_least(0, LARGEST_NUMBER)]]

NEEDED = ("device", "devices", "model", "links")
"""Keys that a profile must have."""
LINKS = ("peak_flops", "memory_bandwidth", "node_bandwidth", "node_latency")
"""Keys that its links must have where no datasheet has them: of a CPU."""
ABOVE_ZERO = (
    *LINKS[:3], "host_bandwidth", "matmul_share", "attention_share", "memory_share", "node_share", "network_share",
)  # fmt: skip
"""Numbers that times are divided by."""
KINDS = {"all_gather": "gather", "reduce_scatter": "gather"}
"""The time model's name of a collective, where it is not its name: a reduce-scatter is a gather backwards."""


@dataclass(frozen=True)
class Product:
    """A matmul [m, k] x [k, n] of numbers of a type, on one device."""

    m: Size
    n: Size
    k: Size
    dtype: Dtype
    seconds: Measured
    adds: bool = False
    """Whether the result is added to an accumulator in float32, as gradients of weights are."""


@dataclass(frozen=True)
class Attended:
    """Attention of one row on one device, of which a token sees itself and those before it."""

    backend: str
    dtype: Dtype
    length: Size
    heads: Size
    kv_heads: Size
    width: Size
    """Mean width of a query and a value."""
    keys: Measured
    """Tokens that a query sees, on average: fewer than half of the row where there is a window."""
    forward: Measured
    """Seconds of the forward."""
    backward: Measured


@dataclass(frozen=True)
class Sent:
    """A collective of so many ranks on so many hosts, all such groups at the same time."""

    collective: Collective
    ranks: Size
    hosts: Size
    bytes: Size
    """For a gather what a rank has in the end, of a reduce-scatter, all-reduce or all-to-all what it has at first, of a
    permute what it sends."""
    seconds: Measured


@dataclass(frozen=True)
class Profile:
    """The keys of the file."""

    device: str = ""
    """Name of the device in JAX."""
    devices: Size = 1
    processes: Size = 1
    date: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    shapes: str = ""
    """The model whose shapes they are."""
    launch_seconds: float = 0.0
    """Seconds of the smallest kernel in a loop on the device."""
    model: Numbers = field(default_factory=dict)
    """Measured parameters, in place of those that are fitted (`HardwareModel`)."""
    links: Numbers = field(default_factory=dict)
    """Measured numbers that replace those of the datasheet, by name: of `LINKS`, and `host_bandwidth`."""
    matmuls: tuple[Product, ...] = ()
    attention: tuple[Attended, ...] = ()
    collectives: tuple[Sent, ...] = ()
    refused: tuple[str, ...] = ()
    """Measurements that were not kept, and why."""
    could_not_measure: tuple[str, ...] = ()
    """Parameters that this machine lacks, and so keeps its shares."""

    @property
    def title(self) -> str:
        """The machine and the date of the measurement."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return ", ".join(text for text in (f"{self.devices} x {self.device}", self.date, versions) if text)

    def tables(self, sharing: int = 1) -> Tables:
        """For the time model, of devices of which `sharing` share what one of them had alone."""
        rows: defaultdict[Table, list[Row]] = defaultdict(list)
        for one in self.matmuls:
            table = Table("matmul", (ITEM_BYTES[one.dtype], one.adds))
            rows[table].append(Row((one.m, one.n, one.k), one.seconds * sharing))
        for one in self.attention:
            of, each = (one.width, ITEM_BYTES[one.dtype]), sharing / (one.heads * one.length)
            rows[Table("attention forward", of)].append(Row((one.keys,), one.forward * each))
            rows[Table("attention backward", of)].append(Row((one.keys,), one.backward * each))
        for one in self.collectives:
            table = Table(KINDS.get(one.collective, one.collective), (one.ranks, one.hosts))
            rows[table].append(Row((one.bytes,), one.seconds))
        return Tables(MappingProxyType(dict(rows)))


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile, a row of a table on a line. Raises `UserError` where that cannot be."""
    try:
        plain = {name: _plain(value) for name, value in asdict(profile).items()}.items()
        table = lambda value: isinstance(value, list) and all(isinstance(row, dict) for row in value)
        text = "".join(to_yaml({key: value}, rows=table(value)) for key, value in plain)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{named(path)}: the profile cannot be written ({error.strerror})") from None


def _plain(value: object) -> object:
    """Lists for tuples, and numbers of five digits: no clock has more."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def read_profile(path: Path, cluster: Cluster) -> tuple[HardwareModel, Cluster, Profile]:
    """The hardware parameters and tables of a profile for the GPUs of `cluster`, the cluster with the measured links,
    and the profile itself.

    Raises:
        UserError: it cannot be read, is no profile, or is of another kind of device.
    """
    profile, lines = read_record(Profile, path)
    if missing := [key for key in NEEDED if key not in lines]:
        raise UserError(
            f"{named(path)}: not a profile of python -m jaxpar.plan calibrate: {' and '.join(missing)} missing"
        )
    for key in ("model", "links"):
        if zeros := [name for name, value in getattr(profile, key).items() if name in ABOVE_ZERO and not value]:
            raise UserError(f"{named(path)}:{lines[key]}: {key}.{zeros[0]}: must be above 0, got 0")
    if profile.device not in cluster.gpu.device_kinds:
        raise UserError(
            f"--profile {named(path)}: measured on {profile.device}, and the cluster has {cluster.gpu.name}; "
            "expected a profile of the same device"
        )
    if is_cpu(cluster) and (lacking := [name for name in LINKS if name not in profile.links]):
        raise UserError(
            f"{named(path)}:{lines['links']}: links: {' and '.join(lacking)} missing; measure again with "
            "python -m jaxpar.plan calibrate"
        )
    known = {one.name for one in fields(HardwareModel)} - {"measured"}
    model = {name: value for name, value in profile.model.items() if name in known}
    tables = profile.tables(cluster.gpus_per_host if is_cpu(cluster) else 1)
    return replace(hardware_of(cluster.gpu), **model, measured=tables), _linked(cluster, profile), profile


def _linked(cluster: Cluster, profile: Profile) -> Cluster:
    """The cluster, whose GPUs that are like the measured ones have the measured links."""
    share = profile.devices / cluster.gpus_per_host if is_cpu(cluster) else 1.0
    scaled = {name: value if name == "node_latency" else value * share for name, value in profile.links.items()}
    groups = [_with_links(one, scaled) if one.gpu == cluster.gpu else one for one in cluster.groups]
    return replace(cluster, groups=tuple(groups))


def _with_links(group: Group, links: dict[str, float]) -> Group:
    """A group with the link to its hosts' memory; and, where no datasheet has them, peaks, memory and other links."""
    if "host_bandwidth" in links:
        group = replace(group, host=replace(group.host, bandwidth=links["host_bandwidth"], source=MEASURED))
    if group.gpu.short != CPU:
        return group
    gpu = replace(
        group.gpu,
        peaks=MappingProxyType(dict.fromkeys(group.gpu.peaks, links["peak_flops"])),
        hbm_bandwidth=links["memory_bandwidth"],
    )
    node = replace(group.node, bandwidth=links["node_bandwidth"], latency=links["node_latency"], source=MEASURED)
    return replace(group, gpu=gpu, node=node, network=node)
