"""`memory.remat: auto`: what layers keep so that a step fits at the least time."""

from __future__ import annotations

from jaxpar.config import Config, UserError
from jaxpar.config.plan import LayerRun, Plan
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.pareto import NO_LIMIT, NothingFits, cheapest
from jaxpar.memory.remat import Treatment
from jaxpar.model.activations import ACTIVATIONS
from jaxpar.training.memory_check import mebibytes
from jaxpar.training.room import Room, memory_room

ESTIMATED = 0.92
"""Share of the memory that may be planned for: XLA begins to recompute of its own accord at 0.95 of what it may have,
and the estimate of everything but activations is not exact."""

IN_TRANSIT = 2
"""Layers whose offloaded activations are on the device all the same: the one that computes, and the next."""


def auto_runs(config: Config, plan: Plan, costs: LayerCosts, usable_bytes: int) -> tuple[LayerRun, ...]:
    """What the layers of a chunk keep under `auto`: the cheapest choice that fits into `usable_bytes` of a device.

    Host memory is used where nothing fits without it: what it costs in time is known only of an idle link.

    Raises:
        UserError: nothing fits.
    """
    room = memory_room(config, plan, int(ESTIMATED * usable_bytes))
    layers, least = max(plan.stage_layers), 0
    for host_bytes in (0, NO_LIMIT):
        try:
            return cheapest_runs(room, costs, layers, host_bytes)
        except NothingFits as error:
            least = error.least_bytes
    ways = [
        "raise parallel.microbatches" if plan.microbatch_rows > 1 else "split the sequence (parallel.context)",
        *(["choose parallel.zero: 3"] if plan.zero < 3 else []),
        *(["choose memory.optimizer_offload: host"] if plan.optimizer_offload == "none" else []),
    ]
    raise UserError(
        f"memory.remat: auto finds nothing that fits: activations take {mebibytes(least * room.units)} at least, and "
        f"of the {mebibytes(room.usable_bytes)} that may be planned for on a device "
        f"{mebibytes(max(0, room.left_bytes))} are left for them; {', '.join(ways)}, or shard over more devices"
    )


def cheapest_runs(room: Room, costs: LayerCosts, layers: int, host_bytes: int) -> tuple[LayerRun, ...]:
    """The cheapest choice for a chunk of so many layers.

    Raises:
        NothingFits: there is none with so much host memory for a microbatch in a chunk.
    """
    on_their_way = IN_TRANSIT * sum(costs.sizes.values()) if host_bytes else 0
    runs = cheapest(costs, layers, room.unit_bytes - on_their_way // room.units, host_bytes)
    return tuple(LayerRun(number, _of_all_names(own)) for number, own in runs)


def _of_all_names(treatments: dict[str, Treatment]) -> dict[str, Treatment]:
    """With names that this model's layers do not have."""
    return {name: treatments.get(name, "recompute") for name in ACTIVATIONS}
