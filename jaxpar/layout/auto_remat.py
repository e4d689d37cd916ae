"""`memory.remat: auto`: what layers keep so that a step fits at the least time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxpar.config import Config, UserError
from jaxpar.config.axes import axis_sizes
from jaxpar.config.plan import AxisSizes, LayerRun, Plan
from jaxpar.config.schema.layout import expert_options
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.recomputation import layer_costs
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layers.declared import activation_names
from jaxpar.layers.matmul_formats import exact_shares
from jaxpar.layout.choices.attention import backends_on, strategy_on
from jaxpar.layout.choices.experts import loops_on
from jaxpar.layout.choices.matmul import expert_quantization
from jaxpar.layout.choices.matmul_quantization import matmul_quantization
from jaxpar.layout.choices.pipeline import choose_schedule, chunk_layers, holds, layer_order, order_of_chunks
from jaxpar.layout.memory.estimate import IN_TRANSIT
from jaxpar.layout.memory.room import Room, memory_room
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.layer_shape import layer_shapes
from jaxpar.memory.pareto import NothingFits, cheapest_of_kinds, layer_frontier, point_of
from jaxpar.memory.remat import Treatment, joined
from jaxpar.pages.units import size

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
    choices: list[tuple[LayerRun, ...]] = []
    for share in (OVERLAPPED, 1.0) if gathered else (1.0,):
        room = memory_room(config, plan, int(ESTIMATED * share * usable_bytes))
        for host_bytes in (0, room.host_unit_bytes(host_limit)):
            try:
                choices.append(cheapest_runs(room, costs, kinds, host_bytes, activation_names(config.model)))
            except NothingFits as error:
                least = error.least_bytes
                continue
            if config.memory.host_limit is None:
                break
        if choices:
            return min(choices, key=lambda runs: lost_seconds(costs, kinds, runs))
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
    choices: list[tuple[float, tuple[LayerRun, ...]]] = []
    least: list[int] = []
    points = {kind: layer_frontier(cost) for kind, cost in costs.items()}
    layer_bytes = max(sum(cost.sizes.values()) for cost in costs.values())
    for part in PARTS:
        # The choice decides which copies are in flight, and copies in flight leave less memory for the choice.
        on_their_way = IN_TRANSIT * layer_bytes // part
        host_share = min(host_bytes, len(kinds) * on_their_way // IN_TRANSIT)
        unit_bytes = room.unit_bytes - on_their_way // room.units
        try:
            runs = _named(cheapest_of_kinds(costs, kinds, unit_bytes, host_share, points), names)
        except NothingFits as error:
            least.append(error.least_bytes + on_their_way // room.units)
            continue
        if (
            IN_TRANSIT * max(_offloaded(costs[kind], run) for kind, run in _kind_and_treatment_of_slots(kinds, runs))
            <= on_their_way
        ):
            choices.append((lost_seconds(costs, kinds, runs), runs))
    if not choices:
        raise NothingFits(min(least), room.unit_bytes)
    return min(choices, key=lambda choice: choice[0])[1]


def _named(runs: list[tuple[int, dict[str, Treatment]]], names: Sequence[str]) -> tuple[LayerRun, ...]:
    """Runs of layers that recompute what the choice leaves out: what a feed-forward in tiles does not keep."""
    again: dict[str, Treatment] = dict.fromkeys(names, "recompute")
    return joined(LayerRun(layers, again | activations) for layers, activations in runs)


def _kind_and_treatment_of_slots(
    kinds: Sequence[str], runs: Sequence[LayerRun]
) -> list[tuple[str, Mapping[str, Treatment]]]:
    """The kind of each slot, and what it keeps."""
    return list(zip(kinds, (run.activations for run in runs for _ in range(run.layers)), strict=True))


def lost_seconds(costs: Mapping[str, LayerCosts], kinds: Sequence[str], runs: Sequence[LayerRun]) -> float:
    """Time that the slots of a chunk lose by not keeping everything on the device."""
    return sum(point_of(costs[kind], run).seconds for kind, run in _kind_and_treatment_of_slots(kinds, runs))


def _offloaded(costs: LayerCosts, treatments: Mapping[str, Treatment]) -> int:
    """Bytes of a layer that go to the host."""
    return sum(size for name, size in costs.sizes.items() if treatments[name] == "offload")


def costs_of_kinds(config: Config, cluster: Cluster, *, unknown: bool = False) -> dict[str, LayerCosts]:
    """Costs of a layer of each kind of the resolved `config` on `cluster`, for one microbatch on one device.

    Where layers are quantized, a product that runs again takes its time with the passes that make its codes; in the
    exceptions that of `precision.compute`. Attention takes the time of the backend that runs, and on `unknown`
    devices, for which the cluster's stand in, that of cuDNN.
    """
    axes = AxisSizes(**axis_sizes(config.parallel))
    rows = config.data.batch_size // (axes.data * config.parallel.microbatches)
    schedule, strategy = choose_schedule(config), strategy_on(config, cluster)
    slots = order_of_chunks(schedule, chunk_layers(config, schedule.chunks), config.model).slots
    in_flight = holds(schedule.name, schedule.virtual_stages, config.parallel.zero, axes.shards)
    quantization = matmul_quantization(
        config, cluster.gpu, config.memory.optimizer_offload, schedule.name if in_flight else None,
        [slot.kind for slot in slots], schedule.chunks, config.memory.weights_offload,
    )  # fmt: skip
    runs = {} if unknown else backends_on(config, cluster.gpu, strategy)
    grouped, exact = expert_quantization(config, DescribedGPU.from_gpu(cluster.gpu)), exact_shares(config)
    loops = not unknown and not grouped.by_kernel and loops_on(config, axes, cluster.gpu, rows)
    asked, slices = config.parallel, expert_options(config.parallel).slices
    return {
        kind: layer_costs(
            LayerCase(
                replace(shape, quantization=grouped), strategy, quantization, axes.devices // axes.pipe, slices,
                runs.get(kind), asked.experts.own_rows, loops, asked.overlap.state_messages,
            ),
            cluster,
            exact=exact[kind],
        )
        for kind, shape in layer_shapes(config, axes, rows).items()
    }  # fmt: skip
