"""What a step needs, what there is, and sizes for people."""

from __future__ import annotations

import os
from math import prod

import jax

from jaxpar.checkpoint.processes import from_first
from jaxpar.hardware.host import PINNED_VARIABLE, host_memory, pinned_limit
from jaxpar.memory.streaming import PINNED
from jaxpar.mesh.devices import Device
from jaxpar.training.step import TrainStep


def state_bytes(step: TrainStep) -> int:
    """Bytes of one device's master weights and moments, wherever they rest."""
    return _bytes_of(jax.tree.leaves(step.abstract_state()))


def pinned_state_bytes(step: TrainStep, *, master_alone: bool = False) -> int:
    """Those of them that rest in pinned memory of the host, or in files; or of these the master weights alone."""
    state = step.abstract_state()
    leaves = jax.tree.leaves(state.master if master_alone else state)
    return _bytes_of([leaf for leaf in leaves if leaf.sharding.memory_kind == PINNED])


def _bytes_of(leaves: list[jax.ShapeDtypeStruct]) -> int:
    return sum(prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def needed_bytes(compiled: jax.stages.Compiled) -> int | None:
    """What a compiled program needs per device: arguments, temporaries and output; None where XLA does not say."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    sizes = analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes
    return sum(sizes) - analysis.alias_size_in_bytes


def mebibytes(count: int) -> str:
    """A size for people."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def memory_limit(step: TrainStep) -> tuple[int, int]:
    """(bytes that this process may use, devices of the mesh that share them).

    A GPU has its own; virtual CPU devices share the machine's memory.
    """
    local = [device for device in step.mesh.devices.flat if device.process_index == jax.process_index()]
    limit = _own_limit(local[0])
    return (host_memory(), len(local)) if limit is None else (limit, 1)


def usable_bytes() -> int:
    """Bytes that a program may take of a device: its own, or its share of the machine's memory, where processes see
    different ones as the first has it."""
    limit = _own_limit(jax.local_devices()[0])
    return from_first(lambda: host_memory() // jax.local_device_count() if limit is None else limit)


def host_share() -> int:
    """`own_host_share`, where processes see different ones as the first has it."""
    return from_first(own_host_share)


def own_host_share() -> int:
    """What this process may pin of the machine's memory for each of its devices."""
    return pinnable_bytes() // jax.local_device_count()


def pinnable_bytes() -> int:
    """What this process may pin of the machine's memory for its devices; virtual CPU devices know no such limit."""
    cpu = jax.local_devices()[0].platform == "cpu"
    return host_memory() if cpu else min(host_memory(), pinned_limit(os.environ))


def host_limit(step: TrainStep, devices: int) -> int:
    """Bytes of this machine's memory that so many of its devices may have pinned."""
    asked = step.config.memory.host_limit
    return pinnable_bytes() if asked is None else min(pinnable_bytes(), asked * devices)


def limit_words(step: TrainStep) -> str:
    """What `host_limit` is due to."""
    if step.config.memory.host_limit is not None:
        return "memory.host_limit leaves"
    return "this machine has" if pinnable_bytes() == host_memory() else f"{PINNED_VARIABLE} leaves this process"


def _own_limit(device: Device) -> int | None:
    """What a device with memory of its own says a program may take of it."""
    statistics = device.memory_stats()
    return statistics["bytes_limit"] if statistics and "bytes_limit" in statistics else None
