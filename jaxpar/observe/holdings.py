"""The arrays in the memory of this process's devices, summed up by purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import jax
from jaxtyping import PyTree

from jaxpar.distributed.devices import Device
from jaxpar.hardware.host import PINNED, host_memory
from jaxpar.observe.memory import host_peak, resident_bytes, statistic
from jaxpar.pages.units import size

OTHER = "other arrays"

_named: WeakKeyDictionary[object, Callable[[Any], Mapping[str, PyTree[jax.Array]]]] = WeakKeyDictionary()


def name_arrays[Owner](owner: Owner, arrays: Callable[[Owner], Mapping[str, PyTree[jax.Array]]]) -> None:
    """Let `memory_report` name arrays: `arrays(owner)` returns trees of them by purpose.

    It is called as long as `owner` lives, and must not hold a reference to it.
    """
    _named[owner] = arrays


@dataclass(frozen=True)
class Holding:
    """Arrays of one kind."""

    name: str
    arrays: int
    """The number of arrays."""
    device_bytes: int
    """Bytes on the device with the most bytes of arrays."""
    pinned_bytes: int
    """Bytes in pinned memory of the host, for all devices of this process."""


@dataclass(frozen=True)
class DeviceHolding:
    """Memory of one device in bytes; None for a number that it does not report."""

    device: str
    arrays: int
    """Bytes of live arrays of Python."""
    in_use: int | None
    """Bytes of arrays and of temporaries of running computations."""
    peak: int | None
    """The most that was in use since the process started."""
    limit: int | None
    """The limit of XLA's allocator."""


@dataclass(frozen=True, repr=False)
class MemoryReport:
    """`print` shows it as a table."""

    holdings: tuple[Holding, ...]
    """Memory by name, largest first."""
    devices: tuple[DeviceHolding, ...]
    host: int
    """Resident memory of this process, which virtual CPU devices share, in bytes."""
    host_peak: int
    host_limit: int
    """Memory of the machine, in bytes."""

    def __str__(self) -> str:
        fullest = max(self.devices, key=lambda device: device.arrays)
        lines = [f"{f'memory of {fullest.device}':<30}{'arrays':>9}{'device':>12}{'pinned host':>14}"]
        for holding in self.holdings:
            lines.append(
                f"  {holding.name:<28}{holding.arrays:>9}{size(holding.device_bytes):>12}"
                f"{size(holding.pinned_bytes):>14}"
            )
        pinned = sum(holding.pinned_bytes for holding in self.holdings)
        count = sum(holding.arrays for holding in self.holdings)
        lines.append(f"  {'all arrays':<28}{count:>9}{size(fullest.arrays):>12}{size(pinned):>14}")
        if fullest.in_use is not None:
            lines.append(f"  {'temporaries, rounding':<28}{'':>9}{size(fullest.in_use - fullest.arrays):>12}")
        lines += ["", f"{'device':<30}{'arrays':>9}{'in use':>12}{'peak':>14}{'limit':>12}"]
        for device in self.devices:
            numbers = [_size(value) for value in (device.arrays, device.in_use, device.peak, device.limit)]
            lines.append(f"  {device.device:<28}{numbers[0]:>9}{numbers[1]:>12}{numbers[2]:>14}{numbers[3]:>12}")
        of_host = size(self.host), size(self.host_peak), size(self.host_limit)
        lines.append(f"  {'this process, on the host':<28}{'':>9}{of_host[0]:>12}{of_host[1]:>14}{of_host[2]:>12}")
        if all(device.in_use is None for device in self.devices):
            lines.append("These devices report nothing of their own: they are in this process's memory.")
        return "\n".join(lines)

    __repr__ = __str__


def memory_report() -> MemoryReport:
    """Report the current memory of this process's devices, by the trainers' names, such as `weights`, if there are any.

    Arrays are counted, not read, so it is cheap enough for any step.
    """
    names: dict[int, str] = {}
    for owner, arrays in list(_named.items()):
        for name, tree in arrays(owner).items():
            names |= {id(leaf): name for leaf in jax.tree.leaves(tree)}
    on_device: dict[str, Counter[Device]] = {}
    pinned: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for array in jax.live_arrays():
        if array.is_deleted():
            continue
        name = names.get(id(array), OTHER)
        part = prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        devices = array.sharding.addressable_devices
        count[name] += 1
        if array.sharding.memory_kind == PINNED:
            pinned[name] += part * len(devices)
        else:
            on_device.setdefault(name, Counter()).update(dict.fromkeys(devices, part))
    holding: Counter[Device] = Counter()
    for kind in on_device.values():
        holding.update(kind)
    local = jax.local_devices()
    fullest = max(local, key=lambda device: holding[device])
    holdings = [
        Holding(name, count[name], on_device.get(name, Counter())[fullest], pinned[name]) for name in sorted(count)
    ]
    return MemoryReport(
        tuple(sorted(holdings, key=lambda holding: -holding.device_bytes)),
        tuple(
            DeviceHolding(
                f"{device.platform}:{device.id}",
                holding[device],
                *(statistic(device, key) for key in ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")),
            )
            for device in local
        ),
        resident_bytes(),
        host_peak(),
        host_memory(),
    )


def _size(value: int | None) -> str:
    return "-" if value is None else size(value)
