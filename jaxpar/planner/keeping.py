"""What layers can keep within a layout's memory: presets, the cheapest mixture, and shares of them on the host."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, floor
from typing import Any

from jaxpar.config import Config
from jaxpar.config.plan import AxisSizes, LayerRun
from jaxpar.hardware.cluster import Cluster
from jaxpar.layers.declared import activation_names
from jaxpar.memory.costs import LayerCosts, layer_costs, speeds_on
from jaxpar.memory.fraction import kept_bytes
from jaxpar.memory.layer_shape import layer_shapes
from jaxpar.memory.pareto import NothingFits, Point, cheapest_of_kinds, layer_front
from jaxpar.memory.pipeline_offload import ATTAINED, largest_hidden_fraction
from jaxpar.memory.remat import joined, runs_by_kind
from jaxpar.pipeline.schedules import SCHEDULES
from jaxpar.planner.chunks import Kinds, chunk_slots
from jaxpar.planner.layout import Layout, Remat
from jaxpar.planner.memory import MemoryModel, Units
from jaxpar.planner.memory_case import Case
from jaxpar.planner.memory_slots import Slots, holds, pipeline_slots
from jaxpar.planner.settings import ONE_STAGE, Runs, as_remat, of_all_names, runs_of
from jaxpar.planner.space import Choice, Group
from jaxpar.planner.time_pipeline import chunk_layers
from jaxpar.training.memory_estimate import IN_TRANSIT, MemoryEstimate
from jaxpar.training.tiles import mlp_tiles, without_hidden

SHARES = 20
"""Parts in which the share of activations on the host is searched."""
IN_TIME = ("none", "gemm_last", "selective", "full")
"""Presets, about by rising time."""


@dataclass(frozen=True)
class Kept:
    """A layout with what its layers keep, and what that takes."""

    layout: Layout
    memory: MemoryEstimate


@dataclass(frozen=True)
class Keeper:
    """All that can be kept under one choice of one group."""

    model: MemoryModel
    cluster: Cluster
    group: Group
    choice: Choice
    limit: int
    """Bytes of a device that may be planned for."""
    fixed_remat: str | None = None
    may_offload: bool = True
    known: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    """What keepers of this model and cluster found already: most of it does not depend on all of a choice."""

    def options(self) -> Iterator[Kept]:
        """What fits; if everything can be kept, only that."""
        for preset in self._presets:
            memory = self.memory(preset)
            if memory.device <= self.limit:
                yield Kept(self.layout(preset), memory)
                if preset == "none":
                    return
            elif self.may_offload and preset != "full":
                yield from self._with_host(preset)
        if self.fixed_remat is None:
            yield from self._mixture()

    def layout(self, remat: Remat, share: float = 0.0) -> Layout:
        """The layout in which layers keep so much."""
        group, choice = self.group, self.choice
        return Layout(
            pipe=group.pipe, replica=group.replica, fsdp=group.fsdp, expert=group.expert, context=group.context,
            tensor=group.tensor, microbatch=group.microbatch, schedule=choice.schedule,
            virtual_stages=choice.virtual_stages, zero=choice.zero, context_strategy=choice.context_strategy,
            remat=remat, offload_fraction=share, optimizer_offload=choice.optimizer_offload,
            precision=self.model.config.precision.compute, stage_layers=choice.stage_layers,
        )  # fmt: skip

    def least(self) -> MemoryEstimate:
        """What it takes at least with everything made again and nothing more on the host."""
        return self.memory("full" if self.fixed_remat is None else self.fixed_remat)

    def smallest(self) -> Iterator[int]:
        """Bytes of a device with as little on it as options have: all made again, or as much on the host as copies can
        hide."""
        yield self.least().device
        if self.may_offload:
            for preset in self._presets:
                share = floor(SHARES * self._hidden(preset)) / SHARES
                if share and preset != "full":
                    yield self.memory(preset, share).device

    def memory(self, remat: Remat, share: float = 0.0) -> MemoryEstimate:
        """What this choice takes where layers keep so much, and that share of it rests on the host."""
        case, slots = self.case, self.slots
        key = "memory", case, slots, self._splits, remat, share
        if key not in self.known:
            units = self._units(remat)
            self.known[key] = self._shared(self.model.estimate(case, units, slots), units, share)
        return self.known[key]

    @cached_property
    def case(self) -> Case:
        """What memory depends on of the group and the choice."""
        group, choice, config = self.group, self.choice, self.model.config
        return Case(
            group.pipe, group.shards, group.context, group.tensor, group.microbatch, self._microbatches, choice.zero,
            self.kinds, choice.virtual_stages, "host" if choice.optimizer_offload else "none",
            config.memory.optimizer_resident if choice.optimizer_offload else 0,
        )  # fmt: skip

    def _units(self, remat: Remat) -> Units:
        """What a chunk's layers keep of a microbatch."""
        group = self.group
        key = "units", group.microbatch, group.context, group.tensor, self.kinds, self._splits, remat
        if key not in self.known:
            config, runs = self.model.alike(self.case), runs_of(remat, len(self.kinds), self._names)
            tiles = mlp_tiles(config, runs, self._splits).number
            self.known[key] = self.model.units(self.case, without_hidden(runs, tiles), tiles)
        return self.known[key]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Of the activations of the model's layers."""
        return activation_names(self.model.config.model)

    def _shared(self, estimate: MemoryEstimate, units: Units, share: float) -> MemoryEstimate:
        """With a share of what a unit keeps on the host, taken as a number: which arrays it is comes later.

        A layer whose activations come back has none of them while it makes others again.
        """
        if not share:
            return estimate
        moved = int(share * self.slots.stash * units.kept)
        return estimate._replace(
            saved_activations=estimate.saved_activations - moved,
            temporaries=estimate.temporaries + (1 + IN_TRANSIT) * units.back,
            host=estimate.host + moved,
        )

    @cached_property
    def kinds(self) -> Kinds:
        """Of the slots of a chunk."""
        chunks, lengths = self.group.pipe * self.choice.virtual_stages, self.choice.stage_layers
        model = self.model.config.model
        return chunk_slots(model, chunk_layers(model.layers, chunks) if lengths is None else lengths)

    @property
    def _microbatches(self) -> int:
        return self.model.config.data.batch_size // (self.group.data * self.group.microbatch)

    @property
    def _presets(self) -> tuple[str, ...]:
        return IN_TIME if self.fixed_remat is None else (self.fixed_remat,)

    @cached_property
    def slots(self) -> Slots:
        """Of the pipeline."""
        group, choice = self.group, self.choice
        hold = holds(choice.schedule, choice.virtual_stages, choice.zero, group.shards)
        return pipeline_slots(choice.schedule, group.pipe, self._microbatches, choice.virtual_stages, hold)

    @property
    def _splits(self) -> bool:
        return self.choice.schedule != ONE_STAGE and SCHEDULES[self.choice.schedule].splits_backward

    @cached_property
    def costs(self) -> dict[str, LayerCosts]:
        """Of a layer of each kind, by the roofline."""
        key = "costs", self.group.microbatch, self.group.context, self.group.tensor
        if key not in self.known:
            self.known[key] = costs_of(self.model.config, self.cluster, self.group)
        return self.known[key]

    def _with_host(self, preset: str) -> Iterator[Kept]:
        """The smallest share of a preset's activations on the host with which it fits and that copies can hide."""
        whole, none = self.memory(preset, 1.0), self.memory(preset, 1e-9)
        if whole.device > self.limit:
            return
        share = ceil(SHARES * (none.device - self.limit) / (none.device - whole.device)) / SHARES
        if share <= self._hidden(preset):
            yield Kept(self.layout(preset, share), self.memory(preset, share))

    def _hidden(self, preset: str) -> float:
        """The largest share of what is kept whose copies hide behind the layers."""
        group = self.group
        key = "hidden", group.microbatch, group.context, group.tensor, self.kinds, preset
        if key not in self.known:
            runs = runs_by_kind(runs_of(preset, len(self.kinds), self._names), self.kinds)
            own = [(self.kinds.count(kind), self.costs[kind]) for kind in runs]
            unit = sum(kept_bytes(runs[kind], self.costs[kind].sizes) for kind in runs)
            forward = sum(layers * costs.forward_seconds / ATTAINED for layers, costs in own)
            backward = sum(layers * costs.backward_seconds / ATTAINED for layers, costs in own)
            bandwidth = own[0][1].host_bandwidth
            self.known[key] = largest_hidden_fraction(unit, bandwidth, forward, backward).fraction
        return self.known[key]

    @property
    def _fronts(self) -> dict[str, list[Point]]:
        """Of a layer of each kind, with nothing on the host."""
        return {kind: self._front(costs) for kind, costs in self.costs.items()}

    def _front(self, costs: LayerCosts) -> list[Point]:
        key = "front", *costs.sizes.items(), *costs.recomputations
        if key not in self.known:
            self.known[key] = layer_front(costs, offload=False)
        return self.known[key]

    def _mixture(self) -> Iterator[Kept]:
        """The cheapest maps that fill what there is: one or two for layers that are alike, else one for each kind."""
        least = self.least()
        room = self.limit - (least.device - least.saved_activations)
        units = self.slots.stash
        try:
            found = cheapest_of_kinds(self.costs, self.kinds, room // units, points=self._fronts)
        except NothingFits:
            return
        runs: Runs = joined(LayerRun(layers, of_all_names(own, self._names)) for layers, own in found)
        made = {name for costs in self.costs.values() for name in costs.sizes}
        remat = as_remat(runs, [name for name in self._names if name in made])
        memory = self.memory(remat)
        if memory.device <= self.limit:
            yield Kept(self.layout(remat), memory)


def costs_of(config: Config, cluster: Cluster, group: Group) -> dict[str, LayerCosts]:
    """What a layer of each kind of a group can keep and at which costs."""
    axes = AxisSizes(group.pipe, group.replica, group.fsdp, group.expert, group.context, group.tensor)
    speeds = speeds_on(cluster, axes, config.precision.compute)
    shapes = layer_shapes(config, axes, group.microbatch)
    return {kind: layer_costs(shape, speeds) for kind, shape in shapes.items()}
