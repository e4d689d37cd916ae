"""`memory.remat: auto`: what layers keep so that a step fits at the least time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxpar.config import Config, UserError
from jaxpar.config.plan import LayerRun, Plan
from jaxpar.layers.declared import activation_names
from jaxpar.layout.choices.pipeline import layer_order
from jaxpar.layout.memory.estimate import IN_TRANSIT
from jaxpar.layout.memory.room import Room, memory_room
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.pareto import NothingFits, cheapest_of_kinds, layer_frontier, point_of
from jaxpar.memory.remat import Treatment, joined
from jaxpar.units import size

ESTIMATED = 0.92
"""Share of the memory that may be planned for: XLA begins to recompute by itself at 0.95 of what it may use, and the
estimate of everything but activations is not exact."""

OVERLAPPED = 0.96
"""Share of that which `auto` fills, if it can, where weights are gathered a layer ahead: XLA gives up overlap before
memory is full. Llama 3 70B on 256 H100s waited for 10% of a step at 68.8 GiB of 69.1, and for 1.7% at 66.1."""

PARTS = (1, 2, 4, 8, 16, 32)
"""Divisors that are tried: at most 1/n of what a layer keeps is offloaded to the host."""


def auto_runs(
    config: Config, plan: Plan, costs: Mapping[str, LayerCosts], usable_bytes: int, host_limit: int | None
) -> tuple[LayerRun, ...]:
    """Remat of the slots of a chunk under `auto`, given the costs of a layer of each kind: the cheapest choice
    that fits into `usable_bytes` of a device.

    Host memory is used only if nothing fits without it, since its cost in time is known only for an idle link; where
    the user gives a `memory.host_limit`, wherever it is cheaper. It is at most `host_limit` for a device, the state
    that is stored there included; None is no limit.

    Raises:
        UserError: nothing fits.
    """
    gathered = plan.zero == 3 and plan.axes.shards > 1
    kinds, least = [slot.kind for slot in layer_order(plan, config.model).slots], 0
    found: list[tuple[LayerRun, ...]] = []
    for share in (OVERLAPPED, 1.0) if gathered else (1.0,):
        room = memory_room(config, plan, int(ESTIMATED * share * usable_bytes))
        for host_bytes in (0, room.host_unit_bytes(host_limit)):
            try:
                found.append(cheapest_runs(room, costs, kinds, host_bytes, activation_names(config.model)))
            except NothingFits as error:
                least = error.least_bytes
                continue
            if config.memory.host_limit is None:
                break
        if found:
            return min(found, key=lambda runs: lost_seconds(costs, kinds, runs))
    ways = [
        "raise parallel.microbatches" if plan.microbatch_rows > 1 else "split the sequence (parallel.context)",
        *(["choose parallel.zero: 3"] if plan.zero < 3 else []),
        *(["choose memory.optimizer_offload: host"] if plan.optimizer_offload == "none" else []),
    ]
    beside = ""
    if host_limit is not None:
        free = size(max(0, host_limit - room.host_bytes), 2)
        beside = f" beside the {free} of host memory that there are for them (memory.host_limit)"
    raise UserError(
        f"memory.remat: auto finds nothing that fits: activations take {size(least * room.units, 2)} at "
        f"least{beside}, and of the {size(room.usable_bytes, 2)} that may be planned for on a device "
        f"{size(max(0, room.left_bytes), 2)} are left for them; {', '.join(ways)}, or shard over more devices"
    )


def cheapest_runs(
    room: Room, costs: Mapping[str, LayerCosts], kinds: Sequence[str], host_bytes: int, names: Sequence[str]
) -> tuple[LayerRun, ...]:
    """The cheapest choice for a chunk with slots of these kinds, with all `names` of a model's activations.

    Raises:
        NothingFits: there is none with so much host memory for a microbatch in a chunk.
    """
    if not host_bytes:
        return _named(cheapest_of_kinds(costs, kinds, room.unit_bytes, 0), names)
    found: list[tuple[float, tuple[LayerRun, ...]]] = []
    least: list[int] = []
    points = {kind: layer_frontier(own) for kind, own in costs.items()}
    kept = max(sum(own.sizes.values()) for own in costs.values())
    for part in PARTS:
        # The choice decides which copies are in flight, and copies in flight leave less memory for the choice.
        on_their_way = IN_TRANSIT * kept // part
        own_host = min(host_bytes, len(kinds) * on_their_way // IN_TRANSIT)
        unit_bytes = room.unit_bytes - on_their_way // room.units
        try:
            runs = _named(cheapest_of_kinds(costs, kinds, unit_bytes, own_host, points), names)
        except NothingFits as error:
            least.append(error.least_bytes + on_their_way // room.units)
            continue
        if IN_TRANSIT * max(_offloaded(costs[kind], own) for kind, own in _each(kinds, runs)) <= on_their_way:
            found.append((lost_seconds(costs, kinds, runs), runs))
    if not found:
        raise NothingFits(min(least), room.unit_bytes)
    return min(found, key=lambda choice: choice[0])[1]


def _named(runs: list[tuple[int, dict[str, Treatment]]], names: Sequence[str]) -> tuple[LayerRun, ...]:
    """Runs of layers that recompute what the choice leaves out: what a feed-forward in tiles does not keep."""
    again: dict[str, Treatment] = dict.fromkeys(names, "recompute")
    return joined(LayerRun(number, again | own) for number, own in runs)


def _each(kinds: Sequence[str], runs: Sequence[LayerRun]) -> list[tuple[str, Mapping[str, Treatment]]]:
    """The kind of each slot, and what it keeps."""
    return list(zip(kinds, (run.activations for run in runs for _ in range(run.layers)), strict=True))


def lost_seconds(costs: Mapping[str, LayerCosts], kinds: Sequence[str], runs: Sequence[LayerRun]) -> float:
    """Time that the slots of a chunk lose by not keeping everything on the device."""
    return sum(point_of(costs[kind], own).seconds for kind, own in _each(kinds, runs))


def _offloaded(costs: LayerCosts, treatments: Mapping[str, Treatment]) -> int:
    """Bytes of a layer that go to the host."""
    return sum(size for name, size in costs.sizes.items() if treatments[name] == "offload")
