"""`memory.remat: auto`: what layers keep so that a step fits at the least time."""

from __future__ import annotations

from jaxpar.config import Config, UserError
from jaxpar.config.plan import LayerRun, Plan
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.pareto import NothingFits, cheapest, layer_front, point_of
from jaxpar.memory.remat import Treatment
from jaxpar.model.activations import ACTIVATIONS
from jaxpar.training.memory_check import mebibytes
from jaxpar.training.memory_estimate import IN_TRANSIT
from jaxpar.training.room import Room, memory_room

ESTIMATED = 0.92
"""Share of the memory that may be planned for: XLA begins to recompute of its own accord at 0.95 of what it may have,
and the estimate of everything but activations is not exact."""

PARTS = (1, 2, 4, 8, 16, 32)
"""Of all that a layer keeps, what of it goes to the host at most is one of these parts."""


def auto_runs(
    config: Config, plan: Plan, costs: LayerCosts, usable_bytes: int, host_limit: int | None
) -> tuple[LayerRun, ...]:
    """What the layers of a chunk keep under `auto`: the cheapest choice that fits into `usable_bytes` of a device.

    Host memory is used where nothing fits without it, since what it costs in time is known only of an idle link; where
    the user gives a `memory.host_limit`, wherever it is cheaper. It is at most `host_limit` for a device, the state
    that rests there included; None is no limit.

    Raises:
        UserError: nothing fits, or a share of what is chosen is to go to the host besides.
    """
    if config.memory.offload_fraction:
        raise UserError(
            f"memory.offload_fraction: {config.memory.offload_fraction:g} takes from what memory.remat keeps, and auto "
            "chooses what goes to the host by itself; expected 0, or a memory.remat other than auto"
        )
    room = memory_room(config, plan, int(ESTIMATED * usable_bytes))
    layers, least = max(plan.stage_layers), 0
    found: list[tuple[LayerRun, ...]] = []
    for host_bytes in (0, room.host_unit_bytes(host_limit)):
        try:
            found.append(cheapest_runs(room, costs, layers, host_bytes))
        except NothingFits as error:
            least = error.least_bytes
            continue
        if config.memory.host_limit is None:
            break
    if found:
        return min(found, key=lambda runs: sum(run.layers * point_of(costs, run.activations).seconds for run in runs))
    ways = [
        "raise parallel.microbatches" if plan.microbatch_rows > 1 else "split the sequence (parallel.context)",
        *(["choose parallel.zero: 3"] if plan.zero < 3 else []),
        *(["choose memory.optimizer_offload: host"] if plan.optimizer_offload == "none" else []),
    ]
    beside = ""
    if host_limit is not None:
        free = mebibytes(max(0, host_limit - room.host_bytes))
        beside = f" beside the {free} of host memory that there are for them (memory.host_limit)"
    raise UserError(
        f"memory.remat: auto finds nothing that fits: activations take {mebibytes(least * room.units)} at "
        f"least{beside}, and of the {mebibytes(room.usable_bytes)} that may be planned for on a device "
        f"{mebibytes(max(0, room.left_bytes))} are left for them; {', '.join(ways)}, or shard over more devices"
    )


def cheapest_runs(room: Room, costs: LayerCosts, layers: int, host_bytes: int) -> tuple[LayerRun, ...]:
    """The cheapest choice for a chunk of so many layers.

    Raises:
        NothingFits: there is none with so much host memory for a microbatch in a chunk.
    """
    if not host_bytes:
        return _named(cheapest(costs, layers, room.unit_bytes, 0))
    found: list[tuple[float, list[tuple[int, dict[str, Treatment]]]]] = []
    least: list[int] = []
    points = layer_front(costs)
    for part in PARTS:
        # What is chosen says what is on its way, and what is on its way leaves less to choose from.
        on_their_way = IN_TRANSIT * sum(costs.sizes.values()) // part
        own_host = min(host_bytes, layers * on_their_way // IN_TRANSIT)
        try:
            runs = cheapest(costs, layers, room.unit_bytes - on_their_way // room.units, own_host, points)
        except NothingFits as error:
            least.append(error.least_bytes + on_their_way // room.units)
            continue
        if IN_TRANSIT * max(_offloaded(costs, own) for _, own in runs) <= on_their_way:
            found.append((sum(number * point_of(costs, own).seconds for number, own in runs), runs))
    if not found:
        raise NothingFits(min(least), room.unit_bytes)
    return _named(min(found, key=lambda choice: choice[0])[1])


def _named(runs: list[tuple[int, dict[str, Treatment]]]) -> tuple[LayerRun, ...]:
    return tuple(LayerRun(number, _of_all_names(own)) for number, own in runs)


def _offloaded(costs: LayerCosts, treatments: dict[str, Treatment]) -> int:
    """Bytes of a layer that go to the host."""
    return sum(size for name, size in costs.sizes.items() if treatments[name] == "offload")


def _of_all_names(treatments: dict[str, Treatment]) -> dict[str, Treatment]:
    """With names that this model's layers do not have."""
    return {name: treatments.get(name, "recompute") for name in ACTIVATIONS}
