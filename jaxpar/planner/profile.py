"""A hardware profile: what `calibrate` measured of a machine, and what the planner takes from it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxpar.config import UserError
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import read_text_file
from jaxpar.config.reading.typed import shown
from jaxpar.config.spelling import did_you_mean, named
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.hardware.cluster import Cluster
from jaxpar.layout.plan_file import is_number
from jaxpar.planner.machine import is_cpu

MEASURED = ("device", "devices", "model", "links")
"""Keys that a profile must have."""
LINKS = ("peak_flops", "memory_bandwidth", "node_bandwidth", "node_latency")
"""Keys that its links must have."""
ABOVE_ZERO = (
    *LINKS[:3], "matmul_share", "attention_share", "memory_share", "node_share", "network_share",
)  # fmt: skip
"""Parameters that times are divided by."""


def check_writable(path: Path) -> None:
    """Raise `UserError` where no profile can be written; an existing file stays as it is."""
    there = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise UserError(f"{named(path)}: the profile cannot be written ({error.strerror})") from None
    if not there:
        path.unlink()


def write_profile(path: Path, profile: dict[str, Any]) -> None:
    """Write a profile. Raises `UserError` where that cannot be."""
    try:
        path.write_text(json.dumps(profile, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{named(path)}: the profile cannot be written ({error.strerror})") from None


def read_profile(path: Path, cluster: Cluster) -> tuple[HardwareModel, Cluster]:
    """The hardware parameters of a profile for the GPUs of `cluster`, and the cluster with the measured links.

    Raises:
        UserError: it cannot be read, is no profile, or is of another kind of device.
    """
    try:
        plain = parse_json(read_text_file(path), named(path))
    except FileNotFoundError:
        beside = [entry.name for entry in path.parent.glob("*.json")]
        raise UserError(f"{named(path)}: there is no such file{did_you_mean(path.name, beside)}") from None
    except (OSError, ValueError) as error:  # a UserError is a ValueError
        raise UserError(f"{named(path)}: not a profile of python -m jaxpar.plan calibrate ({error})") from None
    _check(path, plain)
    if plain["device"] not in cluster.gpu.device_kinds:
        raise UserError(
            f"--profile {named(path)}: measured on {plain['device']}, and the cluster has {cluster.gpu.name}; "
            "expected a "
            "profile of the same device"
        )
    known = {one.name for one in fields(HardwareModel)}
    measured = {name: value for name, value in plain["model"].items() if name in known}
    return replace(hardware_of(cluster.gpu), **measured), _linked(cluster, plain)


def _check(path: Path, plain: Any) -> None:
    """Raise `UserError` unless all keys are present and all numbers are possible."""
    missing = [key for key in MEASURED if not isinstance(plain, dict) or key not in plain]
    if missing:
        raise UserError(
            f"{named(path)}: not a profile of python -m jaxpar.plan calibrate: {' and '.join(missing)} missing"
        )
    for section, needed in (("model", ()), ("links", LINKS)):
        numbers = plain[section]
        lacking = [name for name in needed if not isinstance(numbers, dict) or name not in numbers]
        if lacking or not isinstance(numbers, dict):
            text = (
                f"{' and '.join(lacking)} missing" if lacking else f"expected names and numbers, got {shown(numbers)}"
            )
            raise UserError(f"{named(path)}: {section}: {text}; measure again with python -m jaxpar.plan calibrate")
        for name, value in numbers.items():
            if not is_number(value) or value < 0 or (value == 0 and name in ABOVE_ZERO):
                raise UserError(f"{named(path)}: {section}.{name}: expected a number above 0, got {shown(value)}")
    if not is_number(plain["devices"]) or plain["devices"] < 1:
        raise UserError(f"{named(path)}: devices: expected a number above 0, got {shown(plain['devices'])}")


def _linked(cluster: Cluster, plain: dict[str, Any]) -> Cluster:
    """The cluster with the peaks and links that were measured where no datasheet has them."""
    if not is_cpu(cluster):
        return cluster
    share = plain["devices"] / cluster.gpus_per_host
    links = plain["links"]
    group = cluster.groups[0]
    flops = links["peak_flops"] * share
    gpu = replace(
        group.gpu,
        peaks=MappingProxyType(dict.fromkeys(group.gpu.peaks, flops)),
        hbm_bandwidth=links["memory_bandwidth"] * share,
    )
    node = replace(
        group.node, bandwidth=links["node_bandwidth"] * share, latency=links["node_latency"], source="measured"
    )
    groups = (replace(group, gpu=gpu, node=node, network=node),)
    return replace(cluster, groups=groups)
