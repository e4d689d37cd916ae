"""Collectives over groups of all devices, by size: inside a host, and across hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.multihost_utils import broadcast_one_to_all
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpar.distributed.devices import devices_per_node
from jaxpar.pages.units import plural, size
from jaxpar.planner.calibration.stopwatch import Stopwatch
from jaxpar.planner.profile import Collective, Sent

RANKS = "ranks"
EVERYWHERE = PartitionSpec(("outer", RANKS, "inner"))


class Shape(NamedTuple):
    """Groups of ranks that are so many devices apart."""

    ranks: int
    stride: int
    hosts: int
    """Hosts of each group."""


def groups(devices: int, per_host: int) -> list[Shape]:
    """Groups by powers of two, and of all devices, one of each number of ranks and hosts: the ranks next to each other,
    else the nearest."""
    shapes: dict[tuple[int, int], Shape] = {}
    powers = lambda most: [1 << power for power in range(most.bit_length())]
    for stride in powers(devices):
        for ranks in dict.fromkeys((*powers(devices // stride), devices // stride)):
            if ranks == 1 or devices % (ranks * stride):
                continue
            each = max(1, min(ranks, per_host // stride))
            if ranks % each == 0:
                shapes.setdefault((ranks, ranks // each), Shape(ranks, stride, ranks // each))
    return sorted(shapes.values())


def measured_collectives(watch: Stopwatch, devices: Sequence[Any], sizes: Sequence[int]) -> list[Sent]:
    """All collectives over all groups, at so many bytes; every process has to call it."""
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    rows = []
    for group in groups(len(ordered), devices_per_node(ordered)):
        inner = np.array(ordered).reshape(-1, group.ranks, group.stride)
        mesh = Mesh(inner, ("outer", RANKS, "inner"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
        for collective, step in steps(group.ranks):
            for full_bytes in sizes:
                over = f"{plural(group.ranks, 'rank')} on {plural(group.hosts, 'host')}"
                words = f"{collective} of {size(full_bytes)} over {over}"
                seconds = watch.record_seconds(words, partial(_seconds, watch, mesh, collective, step, full_bytes))
                if seconds is not None:
                    rows.append(Sent(collective, group.ranks, group.hosts, full_bytes, seconds))
    return rows


def steps(ranks: int) -> list[tuple[Collective, Callable[..., jax.Array]]]:
    """Each as the step of a loop: from the result of the one before, which it waits for, and from what is sent. So that
    the loop copies nothing, an all-reduce sends the result on, being in place, and no other does."""
    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    return [
        ("all_gather", lambda _, sent: lax.all_gather(sent, RANKS, tiled=True)),
        ("reduce_scatter", lambda _, sent: lax.psum_scatter(sent, RANKS, tiled=True)),
        ("all_reduce", lambda last, _: lax.psum(last, RANKS)),
        ("all_to_all", lambda _, sent: lax.all_to_all(sent, RANKS, 0, 0, tiled=True)),
        ("permute", lambda _, sent: lax.ppermute(sent, RANKS, ring)),
    ]


def arrays(collective: Collective, full_bytes: int, ranks: int) -> tuple[int, int]:
    """Numbers of the result and of what is sent, on each device, of so many bytes of float32."""
    numbers = max(ranks, full_bytes // 4 // ranks * ranks)
    part = numbers // ranks
    return {"all_gather": (numbers, part), "reduce_scatter": (part, numbers)}.get(collective, (numbers, numbers))


def _seconds(watch: Stopwatch, mesh: Mesh, collective: Collective, step: Callable[..., Any], full_bytes: int) -> float:
    """Seconds of a collective of zeros, whose sums stay finite."""
    given = [_zeros(mesh, shape) for shape in arrays(collective, full_bytes, mesh.shape[RANKS])]
    agree = lambda seconds: float(broadcast_one_to_all(np.float32(seconds)))
    return watch.loop(step, *given, agree=agree, within=partial(on_mesh, mesh))


def on_mesh(mesh: Mesh, run: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A loop over the result and what is sent, on every device of a mesh."""
    return jax.shard_map(run, mesh=mesh, in_specs=(EVERYWHERE, EVERYWHERE), out_specs=EVERYWHERE, check_vma=False)


def _zeros(mesh: Mesh, each: int) -> jax.Array:
    """So many on each device."""
    sharding = NamedSharding(mesh, EVERYWHERE)
    return jax.jit(lambda: jnp.zeros(each * mesh.size), out_shardings=sharding)()
