"""Checks the devices that JAX sees: kind, memory, whether the layout fits, and whether collectives are correct."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxpar.checkup.finding import Finding
from jaxpar.config import Config, UserError, resolve_axes
from jaxpar.config.axes import axis_sizes
from jaxpar.distributed.devices import Device
from jaxpar.hardware.catalogue import gpu_of
from jaxpar.hardware.nccl import faults, loaded
from jaxpar.pages.units import plural, rate, seconds, size

ELEMENTS = {"cpu": 2**16, "gpu": 2**24}
"""Float32 values per device in the timed sum: 64 MiB on a GPU."""
REPEATS = 5


def check_devices(devices: Sequence[Device], config: Config, driver: bool, cpu_wanted: bool) -> Iterator[Finding]:
    """Findings about `devices`.

    Args:
        devices: those of the whole job.
        config: whose layout they should carry.
        driver: whether this machine has an NVIDIA driver.
        cpu_wanted: whether JAX_PLATFORMS asks for the CPU.
    """
    yield _kinds(devices, driver, cpu_wanted)
    yield from _memory(devices)
    yield from _nccl(config)
    try:
        parallel = resolve_axes(config.parallel, len(devices))
    except UserError as error:
        yield Finding("layout", "fail", str(error), "choose axes of `parallel` for the present devices")
        return
    sizes = ", ".join(f"{axis} {size}" for axis, size in axis_sizes(parallel).items() if size > 1)
    yield Finding("layout", "ok", sizes or "one device")


def _kinds(devices: Sequence[Device], driver: bool, cpu_wanted: bool) -> Finding:
    kind, processes = devices[0].device_kind, jax.process_count()
    text = f"{len(devices)} x {kind}"
    if processes > 1:
        text += f", {len(devices) // processes} in each of {processes} processes"
    if devices[0].platform == "cpu":
        if driver and not cpu_wanted:
            return Finding(
                "devices", "fail", f"{text}, on a machine with an NVIDIA driver",
                "the plugin for CUDA did not start: python -c 'import jax; jax.devices()' shows the error",
            )  # fmt: skip
        return Finding("devices", "ok", f"{text} (virtual: for trials only)")
    if gpu_of(kind) is None:
        mend = "no action needed; MFU is not shown, and jaxpar.inspect does not support this GPU"
        return Finding("devices", "warn", f"{text}, which is not in the catalogue of GPUs", mend)
    return Finding("devices", "ok", text)


def _memory(devices: Sequence[Device]) -> Iterator[Finding]:
    local = [device for device in devices if device.process_index == jax.process_index()]
    statistics = [device.memory_stats() for device in local]
    limits = [statistic["bytes_limit"] for statistic in statistics if statistic and "bytes_limit" in statistic]
    if limits:
        yield Finding("memory", "ok", f"{size(min(limits))} of each device for programs")


def _nccl(config: Config) -> Iterator[Finding]:
    if (present := loaded()) is None:
        return
    known = faults(present, platform.machine(), pipelined=config.parallel.pipe > 1)
    for sentence in known:
        what, _, mend = sentence.partition(": ")
        yield Finding("NCCL", "warn", what, mend)
    if not known:
        yield Finding("NCCL", "ok", str(present))


def check_collectives(devices: Sequence[Device]) -> Iterator[Finding]:
    """Check a sum over all devices and a ring, and time a large sum."""
    mesh = Mesh(np.array(devices), ("all",))
    count = len(devices)
    across = partial(jax.shard_map, mesh=mesh, in_specs=P("all"))
    ring = [(rank, (rank + 1) % count) for rank in range(count)]
    ranks = _spread(mesh, np.arange(count, dtype=np.float32))
    added = jax.jit(across(lambda mine: jax.lax.psum(mine, "all"), out_specs=P()))(ranks)
    passed = jax.jit(across(lambda mine: jax.lax.ppermute(mine, "all", ring), out_specs=P("all")))(ranks)
    wrong = [shard for shard in passed.addressable_shards if shard.data[0] != (_start(shard.index) - 1) % count]
    if float(added[0]) != count * (count - 1) / 2 or wrong:
        yield Finding(
            "collectives", "fail", f"a sum over {count} devices is {float(added[0]):g}, and should be "
            f"{count * (count - 1) / 2:g}; {len(wrong)} of a ring's messages are wrong",
            "a link or a device is broken: run again on half of the hosts to find it",
        )  # fmt: skip
        return
    elements = ELEMENTS.get(devices[0].platform, ELEMENTS["cpu"])
    large = jax.jit(across(lambda mine: jax.lax.psum(jnp.full((elements,), mine[0]), "all"), out_specs=P()))
    large(ranks).block_until_ready()
    began = time.perf_counter()
    for _ in range(REPEATS):
        large(ranks).block_until_ready()
    took, summed = (time.perf_counter() - began) / REPEATS, elements * 4
    # A ring sends and receives twice the array, but for one part of it.
    speed = 2 * summed * (count - 1) / count / took
    between = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    yield Finding(
        "collectives", "ok",
        f"sums and a ring over {plural(count, 'device')}{between} are right; {size(summed)} are summed in "
        f"{seconds(took)} ({rate(speed)} per device)",
    )  # fmt: skip


def _spread(mesh: Mesh, values: np.ndarray) -> jax.Array:
    sharding = jax.sharding.NamedSharding(mesh, P("all"))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def _start(index: tuple[slice, ...]) -> int:
    return index[0].start or 0
