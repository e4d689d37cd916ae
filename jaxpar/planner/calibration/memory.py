"""A device's memory, and the copies between it and its host's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from jaxpar.distributed.devices import Device
from jaxpar.hardware.host import PINNED
from jaxpar.planner.calibration.stopwatch import Stopwatch
from jaxpar.planner.profile import Copied, Direction, Moved
from jaxpar.units import size

type Runs = tuple[tuple[Direction, Callable[..., Any], tuple[jax.Array, ...]], ...]


def measured_memory(watch: Stopwatch, numbers: int) -> list[Moved]:
    """The mean of two arrays of so many float32 numbers over one of them: two are read and one is written."""
    arrays = jnp.zeros(numbers), jnp.ones(numbers)
    moved = 12 * numbers
    seconds = watch.kept(f"memory, {size(moved)} by one kernel", lambda: watch.loop(mean, *arrays))
    return [] if seconds is None else [Moved(moved, seconds)]


def mean(a: jax.Array, b: jax.Array) -> jax.Array:
    """The step of a loop whose numbers stay finite."""
    return 0.5 * (a + b)


def why_no_copies(device: Device) -> str | None:
    """Why nothing can be copied to pinned memory of the host; None where it can."""
    kinds = [memory.kind for memory in device.addressable_memories()]
    return None if PINNED in kinds else f"the device has no memory of the kind {PINNED}, only {', '.join(kinds)}"


def measured_copies(watch: Stopwatch, device: Device, sizes: Sequence[int]) -> list[Copied]:
    """Copies of so many bytes to pinned memory of the host, from it, and both ways at once."""
    here = SingleDeviceSharding(device)
    there = SingleDeviceSharding(device, memory_kind=PINNED)
    out = jax.jit(lambda x: jax.device_put(x, there), out_shardings=there)
    back = jax.jit(lambda x: jax.device_put(x, here), out_shardings=here)
    both = jax.jit(lambda x, y: (jax.device_put(x, there), jax.device_put(y, here)), out_shardings=(there, here))
    found = []
    for moved in sizes:
        array = jax.device_put(jnp.ones(moved // 4), here)
        pinned = jax.device_put(array, there)
        runs: Runs = (("to_host", out, (array,)), ("from_host", back, (pinned,)), ("both", both, (array, pinned)))
        for direction, function, arrays in runs:
            measure = lambda function=function, arrays=arrays: watch.calls(function, *arrays)
            seconds = watch.kept(f"copy {direction} of {size(moved)}", measure)
            if seconds is not None:
                found.append(Copied(direction, moved, seconds))
    return found


def slowest_copy(copies: Sequence[Copied]) -> float | None:
    """Bytes a second and direction of the largest copies: of those to the host, from it and both at once the least,
    since a step has all three."""
    if not copies:
        return None
    largest = max(one.bytes for one in copies)
    return min(one.bytes / one.seconds for one in copies if one.bytes == largest)
