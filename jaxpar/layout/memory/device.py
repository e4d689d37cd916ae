"""The memory that is available to a step: of the devices and of the host."""

from __future__ import annotations

import os

import jax
from jax.sharding import Mesh

from jaxpar.checkpoint.processes import run_on_process_0
from jaxpar.config import Config
from jaxpar.distributed.devices import Device
from jaxpar.hardware.host import PINNED_VARIABLE, host_memory, pinned_limit


def needed_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Bytes a compiled program needs per device: arguments, temporaries and output; None if XLA does not report it."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    sizes = analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes
    return sum(sizes) - analysis.alias_size_in_bytes


def memory_limit(mesh: Mesh) -> tuple[int, int]:
    """(bytes that this process may use, devices of the mesh that share them).

    A GPU has its own; virtual CPU devices share the machine's memory.
    """
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    limit = _device_limit(local[0])
    return (host_memory(), len(local)) if limit is None else (limit, 1)


def separate_memory(mesh: Mesh) -> bool:
    """Whether the devices have memory of their own: CPU devices use the machine's."""
    return mesh.devices.flat[0].platform != "cpu"


def usable_bytes() -> int:
    """Bytes that a program may take of a device: its own, or its share of the machine's memory. If processes see
    different numbers, that of the first counts."""
    limit = _device_limit(jax.local_devices()[0])
    return run_on_process_0(lambda: host_memory() // jax.local_device_count() if limit is None else limit)


def host_share() -> int:
    """`local_host_share`; if processes see different numbers, that of the first counts."""
    return run_on_process_0(local_host_share)


def local_host_share() -> int:
    """Bytes that this process may pin of the machine's memory for each of its devices."""
    return pinnable_bytes() // jax.local_device_count()


def pinnable_bytes() -> int:
    """Bytes this process may pin of the machine's memory for its devices; virtual CPU devices have no such limit."""
    cpu = jax.local_devices()[0].platform == "cpu"
    return host_memory() if cpu else min(host_memory(), pinned_limit(os.environ))


def host_limit(config: Config, devices: int) -> int:
    """Bytes of this machine's memory that may be pinned for `devices` of its devices."""
    asked = config.memory.host_limit
    return pinnable_bytes() if asked is None else min(pinnable_bytes(), asked * devices)


def limit_words(config: Config) -> str:
    """The origin of `host_limit`."""
    if config.memory.host_limit is not None:
        return "memory.host_limit leaves"
    return "this machine has" if pinnable_bytes() == host_memory() else f"{PINNED_VARIABLE} leaves this process"


def _device_limit(device: Device) -> int | None:
    """Bytes that a program may take of a device with memory of its own, as the device reports it."""
    statistics = device.memory_stats()
    return statistics["bytes_limit"] if statistics and "bytes_limit" in statistics else None
