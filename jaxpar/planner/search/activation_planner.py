"""Remat within a layout's memory: presets, the cheapest mixture, and shares of activations on the host."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import ceil, floor

from jaxpar.config.plan import LayerRun
from jaxpar.cost.layer_case import layer_cases
from jaxpar.cost.layout import Layout, Remat
from jaxpar.cost.recomputation import layer_costs
from jaxpar.layers.declared import activation_names
from jaxpar.layers.matmul_formats import exact_shares
from jaxpar.layout.choices.tiles import mlp_tiles, without_hidden
from jaxpar.layout.memory.estimate import IN_TRANSIT, MemoryEstimate, Units
from jaxpar.layout.resident_state import resident_weights
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.fraction import saved_bytes
from jaxpar.memory.host_points import cheapest_with_host, host_points
from jaxpar.memory.pareto import NO_LIMIT, NothingFits, Point, cheapest_of_kinds, layer_frontier
from jaxpar.memory.pipeline_offload import largest_hidden_fraction
from jaxpar.memory.remat import LAYER_INPUT, Treatment, joined, runs_by_kind
from jaxpar.pipeline.schedules import SCHEDULES
from jaxpar.planner.search.kernels import Kernels
from jaxpar.planner.settings import ONE_STAGE, as_remat, of_all_names, runs_of
from jaxpar.planner.step_time.overlap import HOST

SHARES = 20
"""Parts in which the share of activations on the host is searched."""
IN_TIME = ("none", "gemm_last", "selective", "full")
"""Presets, roughly by rising time."""
EXACT_TURNS = 2
"""Times that a map is searched again in exactly as much less room as it lacks."""

type Treated = list[tuple[int, dict[str, Treatment]]]
"""Runs of layers: (how many, treatment by name)."""


@dataclass(frozen=True)
class Kept:
    """A layout with what its layers keep, and what that takes."""

    layout: Layout
    memory: MemoryEstimate


@dataclass(frozen=True)
class ActivationPlanner(Kernels):
    """Searches what layers keep under one choice of one group."""

    limit: int
    """Bytes of a device that may be planned for."""
    fixed_remat: str | None = None
    may_offload: bool = True
    host_limit: int | None = None
    """Bytes of host memory that a GPU may have pinned; None is no limit."""

    def options(self) -> Iterator[Kept]:
        """The choices that fit; if everything can be saved, only that."""
        for preset in self._presets:
            memory = self.memory(preset)
            if memory.device <= self.limit:
                yield self._with_state(Kept(self.layout(preset), memory))
                if preset == "none":
                    return
            elif self.may_offload and preset != "full":
                yield from self._with_host(preset)
        if self.fixed_remat is None:
            yield from self._mixtures()

    def least(self) -> MemoryEstimate:
        """The least memory: everything recomputed, and nothing more on the host."""
        return self.memory("full" if self.fixed_remat is None else self.fixed_remat)

    def smallest(self) -> Iterator[int]:
        """Least bytes of a device over the options: everything recomputed, as much on the host as copies can
        hide, or the least of a map with activations on the host."""
        yield self.least().device
        if self.may_offload:
            for preset in self._presets:
                share = floor(SHARES * self._hidden(preset)) / SHARES
                if share and preset != "full":
                    yield self.memory(preset, share).device
        if self._maps_to_host:
            memory = self._least_with_host_map()
            if self.host_limit is None or memory.host <= self.host_limit:
                yield memory.device

    def memory(self, remat: Remat, share: float = 0.0) -> MemoryEstimate:
        """The memory of this choice where layers keep so much, with that share of it on the host."""
        case, slots = self.case, self.slots

        def made() -> MemoryEstimate:
            units = self._units(remat)
            return self._shared(self.model.estimate(case, units, slots), units, share)

        return self.known.of(("memory", case, slots, self._splits, remat, share), made)

    @property
    def _presets(self) -> tuple[str, ...]:
        return IN_TIME if self.fixed_remat is None else (self.fixed_remat,)

    @property
    def _splits(self) -> bool:
        return self.choice.schedule != ONE_STAGE and SCHEDULES[self.choice.schedule].splits_backward

    def _units(self, remat: Remat) -> Units:
        """Bytes that a chunk's layers save of a microbatch."""
        group = self.group

        def made() -> Units:
            config, runs = self.model.alike(self.case), runs_of(remat, len(self.kinds), self._names)
            tiles = mlp_tiles(config, runs, self._splits).name
            return self.model.units(self.case, without_hidden(runs, tiles), tiles)

        key = group.microbatch, group.expert, group.context, group.tensor, self.kinds, self._splits, remat
        return self.known.of(("units", key), made)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Names of the activations of the model's layers."""
        return activation_names(self.model.config.model)

    def _shared(self, estimate: MemoryEstimate, units: Units, share: float) -> MemoryEstimate:
        """Kept activations with a share of them on the host; the share is a number, and the arrays are chosen later.

        A layer whose activations are fetched back does not hold them while it recomputes others.
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
    def costs(self) -> dict[str, LayerCosts]:
        """Costs of a layer of each kind."""

        def made() -> dict[str, LayerCosts]:
            config = self.model.config
            cases = layer_cases(config.model, config.data.sequence_length, self.layout("none"), config.lora)
            exact = exact_shares(config)
            return {kind: layer_costs(case, self.cluster, self.hardware, exact[kind]) for kind, case in cases.items()}

        return self.known.of(("costs", *self._timed), made)

    @property
    def _timed(self) -> tuple[Hashable, ...]:
        """The facts that the times of a layer depend on; where a largest magnitude is found in each product, also the
        ranks over which it is."""
        group, quantization = self.group, self.matmul_quantization
        ranks = group.devices // group.pipe if quantization is not None and quantization.measures_amax else 1
        return (
            group.microbatch,
            group.expert,
            group.context,
            group.tensor,
            self.choice.context_strategy,
            quantization,
            ranks,
        )

    def _with_host(self, preset: str) -> Iterator[Kept]:
        """The smallest share of a preset's activations on the host with which it fits and that copies can hide."""
        whole, none = self.memory(preset, 1.0), self.memory(preset, 1e-9)
        if whole.device > self.limit:
            return
        share = ceil(SHARES * (none.device - self.limit) / (none.device - whole.device)) / SHARES
        if share <= self._hidden(preset):
            yield self._with_state(Kept(self.layout(preset, share), self.memory(preset, share)))

    def _hidden(self, preset: str) -> float:
        """The largest share of what is kept whose copies hide behind the layers."""

        def made() -> float:
            runs = runs_by_kind(runs_of(preset, len(self.kinds), self._names), self.kinds)
            own = [(self.kinds.count(kind), self.costs[kind]) for kind in runs]
            unit = sum(saved_bytes(runs[kind], self.costs[kind].sizes) for kind in runs)
            forward = sum(layers * costs.forward_seconds for layers, costs in own)
            backward = sum(layers * costs.backward_seconds for layers, costs in own)
            return largest_hidden_fraction(unit, own[0][1].host_bandwidth, forward, backward).fraction

        return self.known.of(("hidden", *self._timed, self.kinds, preset), made)

    def _frontier(self, costs: LayerCosts) -> list[Point]:
        """The frontier of a layer, with nothing on the host."""
        key = "frontier", *costs.sizes.items(), *costs.recomputations
        return self.known.of(key, lambda: layer_frontier(costs, offload=False))

    def _mixtures(self) -> Iterator[Kept]:
        """The cheapest maps that fill what there is: one or two for layers that are alike, else one for each kind;
        without activations on the host, and with some."""
        yield from self._fitting(self._on_device)
        if self._maps_to_host:
            yield from self._fitting(self._with_host_maps)

    def _fitting(self, cheapest: Callable[[int], Treated]) -> Iterator[Kept]:
        """The cheapest map in so much room for activations that it fits.

        What else a step takes depends on the map: a layer whose input is on the host has it again in its backward. A
        map that does not fit for this is searched again in as much less room as it lacks, and from the third time on in
        ever larger steps.
        """
        least = self.least()
        room, lack = self.limit - (least.device - least.saved_activations), 0
        with suppress(NothingFits):
            for turn in count():
                remat = self._map_of(cheapest(room))
                memory = self.memory(remat)
                if memory.device <= self.limit:
                    yield self._with_state(Kept(self.layout(remat), memory))
                    return
                lack = max(memory.device - self.limit, 0 if turn < EXACT_TURNS else max(2 * lack, room // 32))
                room -= lack

    def _on_device(self, room: int) -> Treated:
        """The cheapest map without activations on the host."""
        frontiers = {kind: self._frontier(costs) for kind, costs in self.costs.items()}
        return cheapest_of_kinds(self.costs, self.kinds, room // self.slots.stash, points=frontiers)

    def _with_host_maps(self, room: int) -> Treated:
        """The cheapest map with activations on the host."""
        units = self.slots.stash
        host = NO_LIMIT if self.host_limit is None else (self.host_limit - self.least().host) // units
        costs = {kind: replace(cost, waited=HOST) for kind, cost in self.costs.items()}
        points = {kind: self._host_points(cost) for kind, cost in costs.items()}
        return cheapest_with_host(costs, self.kinds, lambda most: (room - IN_TRANSIT * most) // units, host, points)

    def _least_with_host_map(self) -> MemoryEstimate:
        """The memory of everything recomputed from layer inputs on the host, of kinds whose layers hide that copy."""
        least: dict[str, dict[str, Treatment]] = {}
        for kind, costs in self.costs.items():
            hides = costs.sizes[LAYER_INPUT] <= costs.host_bandwidth * costs.forward_seconds
            least[kind] = {LAYER_INPUT: "offload" if hides else "save"}
        return self.memory(self._map_of([(1, least[kind]) for kind in self.kinds]))

    @property
    def _maps_to_host(self) -> bool:
        """Whether maps with activations on the host are searched. Ranks of a pipeline offload a share instead, the
        same of each chunk."""
        enough = self.host_limit is None or self.host_limit >= self.least().host
        return enough and self.may_offload and self.fixed_remat is None and self.choice.schedule == ONE_STAGE

    def _map_of(self, treated: Treated) -> Remat:
        """Runs with the activations of the model's layers."""
        runs = joined(LayerRun(layers, of_all_names(each, self._names)) for layers, each in treated)
        made = {name for costs in self.costs.values() for name in costs.sizes}
        return as_remat(runs, [name for name in self._names if name in made])

    def _host_points(self, costs: LayerCosts) -> list[Point]:
        """Choices of a layer with activations on the host."""
        key = "host points", costs.forward_seconds, costs.backward_seconds, *costs.sizes.items(), *costs.recomputations
        return self.known.of(key, lambda: host_points(costs))

    def _with_state(self, option: Kept) -> Kept:
        """With the optimizer's state that stays on the device beside that."""
        if not option.layout.resident_state:
            return option
        model, case, memory = self.model, self.case, option.memory
        names = resident_weights(model, case, self.limit, memory.device)
        every, now = model.fixed(case), model.fixed(case._replace(resident=names))
        memory = memory._replace(
            optimizer=memory.optimizer + now.optimizer - every.optimizer, host=memory.host + now.host - every.host
        )
        return Kept(replace(option.layout, resident_state=1 - now.host / max(1, every.host)), memory)
