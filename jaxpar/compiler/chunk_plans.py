"""Which groups of layers' master weights and moments could stay on a GPU, and what the others move: `--chunks`.

Under `memory.weights_offload: host` the same of layers' weights and gradients.

Nothing is compiled. The groups are PatrickStar's way (`jaxpar.memory.chunks`); programs of `optimizer_offload: host`
keep whole weights of all layers instead, and their row stands beside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.inspection import PLAIN_WIDTH
from jaxpar.config import Config, UserError, load_config
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.hardware.memory import pool_bytes
from jaxpar.memory.chunks import ChunkPlan, GroupsTooLarge, Use, groups_to_pin, plan_chunks, step_uses
from jaxpar.memory.fraction import kept_bytes
from jaxpar.memory.layer_shape import activation_bytes, layer_shapes
from jaxpar.memory.remat import runs_by_kind
from jaxpar.mesh.build import abstract_mesh
from jaxpar.observe.amounts import seconds, size
from jaxpar.training.auto_remat import ESTIMATED
from jaxpar.training.memory_check import pinned_state_bytes, state_bytes
from jaxpar.training.resting_state import gradient_fetches
from jaxpar.training.room import memory_room
from jaxpar.training.step import TrainStep
from jaxpar.training.weight_update import weight_states
from jaxpar.training.weights_away import layer_bytes, layers_that_stay

PROGRAM_OF_LAYERS = "the program: the last layers stay"
"""The way that `memory.weights_offload: host` takes."""

UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class Way:
    """One way to choose what stays, in bytes of a GPU and the update of one step."""

    name: str
    stays: tuple[str, ...]
    """What is always on the device: groups, or weights of the model."""
    loads: float | None
    """Groups that come; None for weights, which pass in pieces."""
    bytes_in: float
    bytes_out: float
    seconds: float
    """At the least, over the link to the host."""


@dataclass(frozen=True)
class ChunkPlans:
    """What can be done with the optimizer's state of a GPU under a budget."""

    config: str
    cluster: str
    groups: dict[str, int]
    """Bytes of master weights and moments, in the order of the model."""
    budget: int
    """Bytes of them that may be on the device."""
    ways: tuple[Way, ...]
    """None where all of it fits."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Ways that there are not under this budget, and why."""
    what: str = "master weights and moments"
    """What the groups have."""

    @property
    def total(self) -> int:
        """All groups together."""
        return sum(self.groups.values())


def state_groups(step: TrainStep) -> dict[str, int]:
    """Bytes of master weights and moments on one device: the embedding, each layer of a rank, the head."""
    state = step.abstract_state()
    rows = step.order.layers_per_chunk * step.plan.virtual_stages
    groups = {"embedding": 0, **{f"layer {row}": 0 for row in range(rows)}, "head": 0}
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in _weights(step)]
    for name, weight in zip(names, weight_states(state.master, state.optimizer), strict=True):
        own = sum(prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in jax.tree.leaves(weight))
        part = name.partition(".")[0]
        if part == "layers":
            for row in range(rows):
                groups[f"layer {row}"] += own // rows
        else:
            groups["embedding" if part == "embedding" else "head"] += own
    return {name: count for name, count in groups.items() if count}


def make_chunk_plans(config: Config, cluster: Cluster, name: str, budget: int | None = None) -> ChunkPlans:
    """The ways for `config` on `cluster`; by default with what is left on a GPU beside everything else as the budget.

    Raises `UserError` where the configuration is wrong.
    """
    memory = replace(config.memory, optimizer_offload="host", optimizer_resident=0, weights_resident=0)
    config, plan = plan_for(replace(config, memory=memory), cluster)
    step = TrainStep(config, plan, abstract_mesh(plan.axes))
    groups = state_groups(step)
    if budget is None:
        room = memory_room(config, plan, int(ESTIMATED * pool_bytes(cluster.device_bytes)))
        shapes = layer_shapes(config, plan.axes, plan.microbatch_rows)
        runs = runs_by_kind(plan.runs, [slot.kind for slot in step.order.slots])
        kept = sum(kept_bytes(own, activation_bytes(shapes[kind])) for kind, own in runs.items())
        budget = max(0, room.left_bytes - room.units * kept)
    if config.memory.weights_offload == "host":
        return _layer_plans(step, cluster, name, budget)
    if sum(groups.values()) <= budget:
        return ChunkPlans(name, cluster.name, groups, budget, ())
    each, uses = list(groups.values()), step_uses(len(groups), phases=("update",))
    named, link = list(groups), cluster.host_bandwidth
    by_layers: dict[str, Callable[[], ChunkPlan]] = {
        "layers, furthest next use leaves": lambda: plan_chunks(each, uses, budget),
        "layers, some pinned": lambda: plan_chunks(each, uses, budget, pinned=groups_to_pin(each, budget)),
        "layers, least recent leaves": lambda: plan_chunks(each, uses, budget, policy="least_recent"),
    }
    ways: list[Way] = []
    missing: dict[str, str] = {}
    for way, make in by_layers.items():
        try:
            ways.append(_way(way, make(), named, link))
        except GroupsTooLarge as error:
            both = " and ".join(named[number] for number in sorted(error.together))
            missing[way] = f"{both} must be on the device together: {size(error.needed)}"
    resident = TrainStep(config, replace(plan, optimizer_resident=budget), step.mesh)
    away = pinned_state_bytes(resident)
    weights = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in _weights(step)]
    stays = tuple(weights[number] for number in sorted(resident.resident))
    ways.append(Way("the program: weights of all layers", stays, None, away, away, away / link))
    assert state_bytes(step) >= sum(groups.values()), "counters come on top"
    return ChunkPlans(name, cluster.name, groups, budget, tuple(ways), missing)


def _layer_plans(step: TrainStep, cluster: Cluster, name: str, budget: int) -> ChunkPlans:
    """The ways with weights and gradients of layers, of which `budget` bytes may stay beside two that come and go."""
    sizes, layers = layer_bytes(step), step.order.layers_per_chunk
    each, what = sizes.weights + sizes.gradients, "weights and gradients of layers"
    groups = {f"layer {row}": each for row in range(layers)}
    stays = layers_that_stay(step, budget)
    if len(stays) == layers:
        return ChunkPlans(name, cluster.name, groups, budget, (), what=what)
    uses = step_uses(layers, step.plan.microbatches, phases=("forward", "backward"))
    ways = []
    for way, pinned in (("layers, furthest next use leaves", ()), (PROGRAM_OF_LAYERS, stays)):
        plan = plan_chunks([each] * layers, uses, budget + 2 * each, pinned=pinned)
        if pinned or way == PROGRAM_OF_LAYERS:
            away, times = layers - len(stays), step.plan.microbatches
            loads, fetched, sent = 2.0 * times * away, gradient_fetches(times) * away, times * away
        else:
            loads, (fetched, sent) = plan.loads, _gradient_moves(plan)
        there, back = loads * sizes.master + fetched * sizes.gradients, sent * sizes.gradients
        always = tuple(f"layer {row}" for row in (stays if way == PROGRAM_OF_LAYERS else plan.pinned))
        ways.append(Way(way, always, loads, there, back, max(there, back) / cluster.host_bandwidth))
    return ChunkPlans(name, cluster.name, groups, budget, tuple(ways), what=what)


def _gradient_moves(plan: ChunkPlan) -> tuple[float, float]:
    """(to the device, from it) gradients per step: they go with a layer that leaves after its backward, and come with
    it for the backward of another microbatch."""
    uses = [move.use for move in plan.moves]
    used: dict[int, Use] = {use.group: use for use in uses}  # as the last step left them
    fetched = sent = 0
    for place, move in enumerate(plan.moves):
        used[move.use.group] = move.use
        sent += sum(used[group].phase == "backward" for group in move.evict)
        following = uses[(place + 1) % len(uses)]
        fetched += move.load is not None and following.phase == "backward" and following.microbatch > 0
    return fetched / plan.steps, sent / plan.steps


def _weights(step: TrainStep) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_leaves_with_path(step.specs)


def _way(name: str, plan: ChunkPlan, groups: Sequence[str], link: float) -> Way:
    stays = tuple(groups[number] for number in plan.pinned)
    there, back = plan.bytes_in, plan.bytes_out
    return Way(name, stays, plan.loads, there, back, max(there, back) / link)


@dataclass(frozen=True)
class ChunkInspection:
    """What the user asked for."""

    config: Path
    cluster: str
    overrides: Sequence[str] = ()
    """`section.key=value`."""
    budget: str = ""
    """Bytes, as in `6GiB`; nothing for what is left."""
    as_json: bool = False

    def run(self) -> None:
        """Plan, and print. Raises `UserError` with one sentence."""
        budget = _bytes(self.budget) if self.budget else None
        config, cluster = load_config(self.config, self.overrides), parse_cluster(self.cluster)
        plans = make_chunk_plans(config, cluster, self.config.stem, budget)
        if self.as_json:
            print(json.dumps(asdict(plans), indent=2))
            return
        console = Console()
        print_chunk_plans(plans, console if console.is_terminal else Console(width=PLAIN_WIDTH))


def print_chunk_plans(plans: ChunkPlans, console: Console) -> None:
    """The ways in a table, and what to write."""
    say = lambda text: console.print(text, soft_wrap=True, highlight=False)
    say(
        f"{plans.config} on {plans.cluster}: {plans.what} take {size(plans.total)} a GPU, in "
        f"{len(plans.groups)} groups of up to {size(max(plans.groups.values()))}; {size(plans.budget)} may be on the "
        "device."
    )
    if not plans.ways:
        key = "optimizer_offload" if plans.what == ChunkPlans.what else "weights_offload"
        say(f"All of it fits: memory.{key}: none moves nothing.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in ("what comes and goes", "loads", "to the device", "back", "a step", "always there"):
        table.add_column(name, justify="left" if name in ("what comes and goes", "always there") else "right")
    for way in plans.ways:
        loads = "in pieces" if way.loads is None else f"{way.loads:g}"
        cells = loads, size(way.bytes_in), size(way.bytes_out), seconds(way.seconds)
        table.add_row(way.name, *cells, ", ".join(_ranges(way.stays)) or "nothing")
    console.print(table)
    for way, why in plans.missing.items():
        say(f"No {way}: {why}.")
    if plans.what != ChunkPlans.what:
        say(
            f"The program: memory.weights_offload: host, memory.weights_resident: {plans.budget}. Two layers have room "
            "besides. Weights come as the float32 master weights; beside this, the gradients that went come for their "
            "norm and for the update. Nothing was compiled; times are those of the link alone."
        )
        return
    say(
        f"The program: memory.optimizer_offload: host, memory.optimizer_resident: {plans.budget}. Beside its update, "
        "the master weights that are away come once more, for the forward. Nothing was compiled; times are those of "
        "the link alone."
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


def _bytes(text: str) -> int:
    """`6GiB` in bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]iB)?\s*", text)
    if found is None:
        raise UserError(f"--chunks {text}: expected bytes, as in 6GiB, 512MiB or 6442450944")
    return int(float(found[1]) * UNITS[found[2] or ""])
