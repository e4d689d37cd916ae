"""What of the optimizer's state, or of layers, a program keeps on a GPU under a budget, and what it moves: `--chunks`.

Under `memory.optimizer_offload: host` a program keeps the state of whole weights, each of all layers; under
`memory.weights_offload: host` the weights and gradients of the last layers. Nothing is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.inspection import screen
from jaxpar.config import Config, load_config
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.hardware.memory import pool_bytes
from jaxpar.layout.auto_remat import ESTIMATED
from jaxpar.layout.memory.estimate import case_of
from jaxpar.layout.memory.fixed import state_of
from jaxpar.layout.memory.resident import layer_bytes, layers_that_stay
from jaxpar.layout.memory.room import memory_room
from jaxpar.layout.memory.state_bytes import offloaded_state_bytes
from jaxpar.layout.memory.state_storage import gradient_fetches
from jaxpar.layout.memory.weights import Weights
from jaxpar.layout.step_layout import StepLayout
from jaxpar.memory.fraction import kept_bytes
from jaxpar.memory.layer_shape import activation_bytes, layer_shapes
from jaxpar.memory.remat import runs_by_kind
from jaxpar.units import seconds, size

OPTIMIZER, LAYERS = "master weights and moments", "weights and gradients of layers"


@dataclass(frozen=True)
class ChunkPlan:
    """What a program keeps on a GPU under a budget, and what it moves in a step, in bytes of one device."""

    config: str
    cluster: str
    what: str
    """`OPTIMIZER` or `LAYERS`."""
    groups: dict[str, int]
    """Bytes of what may stay: the state of each weight, or each layer."""
    budget: int
    """Bytes of them that may be on the device."""
    stays: tuple[str, ...]
    """Those of `groups` that are always on the device."""
    loads: int | None
    """How often a layer is fetched; None for weights, which are fetched in pieces."""
    bytes_in: int
    bytes_out: int
    seconds: float
    """At the least, over the link to the host."""


def make_chunk_plan(config: Config, cluster: Cluster, name: str, budget: int | None = None) -> ChunkPlan:
    """The plan for `config` on `cluster`; the default budget is what everything else leaves free on a GPU.

    Raises `UserError` where the configuration is wrong.
    """
    memory = replace(config.memory, optimizer_offload="host", optimizer_resident=0, weights_resident=0)
    config, plan = plan_for(replace(config, memory=memory), cluster)
    layout = StepLayout(config, plan)
    if budget is None:
        room = memory_room(config, plan, int(ESTIMATED * pool_bytes(cluster.device_bytes)))
        shapes = layer_shapes(config, plan.axes, plan.microbatch_rows)
        runs = runs_by_kind(plan.runs, [slot.kind for slot in layout.order.slots])
        kept = sum(kept_bytes(own, activation_bytes(shapes[kind])) for kind, own in runs.items())
        budget = max(0, room.left_bytes - room.units * kept)
    if config.memory.weights_offload == "host":
        return _layer_plan(layout, cluster, name, budget)
    state = state_of(config, Weights(config), case_of(config, plan))
    stays = state.that_stay(budget)
    moved = offloaded_state_bytes(StepLayout(config, replace(plan, resident_weights=stays)))
    time = moved / cluster.host_bandwidth
    return ChunkPlan(name, cluster.name, OPTIMIZER, state.by_weight(), budget, stays, None, moved, moved, time)


def _layer_plan(layout: StepLayout, cluster: Cluster, name: str, budget: int) -> ChunkPlan:
    """With weights and gradients of layers, of which `budget` bytes may stay in addition to two layers in transit."""
    sizes, layers, times = layer_bytes(layout), layout.order.layers_per_chunk, layout.plan.microbatches
    groups = {f"layer {row}": sizes.stays for row in range(layers)}
    offloaded = layers - layers_that_stay(sizes, layers, budget)
    loads = 2 * times * offloaded
    there = loads * sizes.master + gradient_fetches(times) * offloaded * sizes.gradients
    back = times * offloaded * sizes.gradients
    stays, time = tuple(groups)[offloaded:], max(there, back) / cluster.host_bandwidth
    return ChunkPlan(name, cluster.name, LAYERS, groups, budget, stays, loads, there, back, time)


@dataclass(frozen=True)
class ChunkInspection:
    """What the user asked for."""

    config: Path
    cluster: str
    overrides: Sequence[str] = ()
    """`section.key=value`."""
    budget: int | None = None
    """Bytes; None for what is left."""
    as_json: bool = False

    def run(self) -> None:
        """Plan, and print. Raises `UserError` with one sentence."""
        config, cluster = load_config(self.config, self.overrides), parse_cluster(self.cluster)
        plan = make_chunk_plan(config, cluster, self.config.stem, self.budget)
        if self.as_json:
            print(json_text(asdict(plan), indent=2))
            return
        print_chunk_plan(plan, screen())


def print_chunk_plan(plan: ChunkPlan, console: Console) -> None:
    """What stays, what moves, and what to write."""
    write = lambda text: console.print(text, soft_wrap=True, highlight=False)
    sizes, key = plan.groups.values(), "optimizer" if plan.what == OPTIMIZER else "weights"
    write(
        f"{plan.config} on {plan.cluster}: {plan.what} take {size(sum(sizes))} a GPU, in {len(sizes)} "
        f"{'weights' if plan.what == OPTIMIZER else 'layers'} of up to {size(max(sizes))}; {size(plan.budget)} may be "
        "on the device."
    )
    if len(plan.stays) == len(sizes):
        write(f"All of it fits: memory.{key}_offload: none moves nothing.")
        return
    fetched = {} if plan.loads is None else {"layers fetched": f"{plan.loads} a step"}
    rows = {
        "stays on the device": ", ".join(_ranges(plan.stays)) or "nothing",
        **fetched,
        "to the device": f"{size(plan.bytes_in)} a step",
        "back to the host": f"{size(plan.bytes_out)} a step",
        "time of the link": f"{seconds(plan.seconds)} a step",
    }
    write("")
    for name, value in rows.items():
        write(f" {name:<22}{value}")
    write("")
    notes = {
        OPTIMIZER: "The bytes are those of the update; the offloaded master weights are fetched once more for the "
        "forward pass.",
        LAYERS: "Room for two layers in transit is reserved in addition. Layers are fetched as master weights. The "
        "fetches of offloaded gradients for their norm and for the update are not counted.",
    }
    write(
        f"This is memory.{key}_offload: host with memory.{key}_resident: {plan.budget}. {notes[plan.what]} Nothing was "
        "compiled."
    )


def _ranges(names: Sequence[str]) -> list[str]:
    """`layer 3, layer 4, layer 5` as `layers 3-5`."""
    found: list[tuple[str, int, int]] = []
    for name in names:
        layer = re.fullmatch(r"layer (\d+)", name)
        number = int(layer[1]) if layer else -1
        if layer and found and found[-1][2] == number - 1 and found[-1][0].startswith("layer "):
            found[-1] = (found[-1][0], found[-1][1], number)
        else:
            found.append((name, number, number))
    return [name if first == last else f"layers {first}-{last}" for name, first, last in found]
