"""What layers can keep within a layout's memory: presets, the cheapest mixture, and shares of them on the host."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, floor
from typing import Any, Literal

from jaxpar.config.plan import AxisSizes, LayerRun
from jaxpar.config.schema.layout import expert_options
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.matmul_codes import MatmulCodes
from jaxpar.cost.operations import Attention
from jaxpar.cost.recomputation import layer_costs
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layers.declared import activation_names
from jaxpar.layers.matmul_formats import exact_shares
from jaxpar.layout.choices.attention import backends_on, scratch_on
from jaxpar.layout.choices.embedding import embedding_messages
from jaxpar.layout.choices.experts import loops_on
from jaxpar.layout.choices.matmul import grouped_codes
from jaxpar.layout.choices.matmul_codes import matmul_codes
from jaxpar.layout.choices.pipeline import holds
from jaxpar.layout.choices.tiles import mlp_tiles, without_hidden
from jaxpar.layout.memory.case import Case
from jaxpar.layout.memory.estimate import IN_TRANSIT, MemoryEstimate, MemoryModel, Units
from jaxpar.layout.memory.slots import Slots, pipeline_slots
from jaxpar.layout.resident_state import resident_weights
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.fraction import kept_bytes
from jaxpar.memory.layer_shape import ExpertCodes, layer_shapes
from jaxpar.memory.pareto import NothingFits, Point, cheapest_of_kinds, layer_frontier
from jaxpar.memory.pipeline_offload import largest_hidden_fraction
from jaxpar.memory.remat import joined, runs_by_kind
from jaxpar.mesh.quantized.transport import Transport
from jaxpar.pipeline.schedules import SCHEDULES
from jaxpar.planner.layout import Layout, Remat
from jaxpar.planner.machine import is_cpu
from jaxpar.planner.search.space import Choice, Group
from jaxpar.planner.settings import ONE_STAGE, Runs, as_remat, of_all_names, runs_of
from jaxpar.planner.step_time.chunks import Kinds, chunk_slots
from jaxpar.planner.step_time.pipeline import chunk_layers

SHARES = 20
"""Parts in which the share of activations on the host is searched."""
IN_TIME = ("none", "gemm_last", "selective", "full")
"""Presets, roughly by rising time."""


@dataclass(frozen=True)
class Kept:
    """A layout with what its layers keep, and what that takes."""

    layout: Layout
    memory: MemoryEstimate


@dataclass(frozen=True)
class ActivationPlanner:
    """Searches what layers keep under one choice of one group."""

    model: MemoryModel
    cluster: Cluster
    hardware: HardwareModel
    """Parameters of its GPUs and links."""
    group: Group
    choice: Choice
    limit: int
    """Bytes of a device that may be planned for."""
    fixed_remat: str | None = None
    may_offload: bool = True
    known: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    """Results shared by the activation planners of this model and cluster: most depend on part of a choice only."""

    def options(self) -> Iterator[Kept]:
        """What fits; if everything can be kept, only that."""
        for preset in self._presets:
            memory = self.memory(preset)
            if memory.device <= self.limit:
                yield self._with_state(Kept(self.layout(preset), memory))
                if preset == "none":
                    return
            elif self.may_offload and preset != "full":
                yield from self._with_host(preset)
        if self.fixed_remat is None:
            yield from self._mixture()

    def layout(self, remat: Remat, share: float = 0.0) -> Layout:
        """The layout in which layers keep what `remat` names. Of a state on the host all is counted as resident, which
        is the fastest, until `options` knows what fits."""
        group, choice, precision = self.group, self.choice, self.model.config.precision
        asked = self.model.config.parallel
        return Layout(
            pipe=group.pipe, replica=group.replica, fsdp=group.fsdp, expert=group.expert, context=group.context,
            tensor=group.tensor, microbatch=group.microbatch, schedule=choice.schedule,
            virtual_stages=choice.virtual_stages, zero=choice.zero, context_strategy=choice.context_strategy,
            remat=remat, offload_fraction=share, optimizer_offload=choice.optimizer_offload,
            resident_state=float(choice.optimizer_offload and not is_cpu(self.cluster)),
            precision=precision.compute,
            wire=Transport(asked.quantized.weights, asked.quantized.gradients),
            stage_layers=choice.stage_layers, expert_exchange=asked.experts.exchange,
            expert_capacity=asked.experts.capacity, imbalance=asked.experts.imbalance,
            expert_loop=self._expert_loop and not self._expert_codes.by_kernel,
            exchange_dtype=asked.quantized.tokens, expert_codes=self._expert_codes,
            matmul_codes=self._matmul_codes,
            embedding_messages=self._embedding_messages,
            shard_state=self._state_replicas > 1,
            attention=self.attention,
            expert_slices=expert_options(asked).slices, expert_own_rows=asked.experts.own_rows,
            shared_ends=choice.shared_ends,
        )  # fmt: skip

    def least(self) -> MemoryEstimate:
        """The least memory: everything recomputed, and nothing more on the host."""
        return self.memory("full" if self.fixed_remat is None else self.fixed_remat)

    def smallest(self) -> Iterator[int]:
        """Least bytes of a device over the options: everything recomputed, or as much on the host as copies can
        hide."""
        yield self.least().device
        if self.may_offload:
            for preset in self._presets:
                share = floor(SHARES * self._hidden(preset)) / SHARES
                if share and preset != "full":
                    yield self.memory(preset, share).device

    def memory(self, remat: Remat, share: float = 0.0) -> MemoryEstimate:
        """The memory of this choice where layers keep so much, with that share of it on the host."""
        case, slots = self.case, self.slots
        key = "memory", case, slots, self._splits, remat, share
        if key not in self.known:
            units = self._units(remat)
            self.known[key] = self._shared(self.model.estimate(case, units, slots), units, share)
        return self.known[key]

    @cached_property
    def case(self) -> Case:
        """What memory depends on of the group and the choice."""
        group, choice, memory = self.group, self.choice, self.model.config.memory
        logits = "keep" if memory.loss_logits == "keep" else "recompute"
        return Case(
            group.pipe, group.shards, group.context, group.tensor, group.microbatch, self._microbatches, choice.zero,
            self.kinds, choice.virtual_stages, "host" if choice.optimizer_offload else "none",
            loss_logits=logits if memory.loss_backend == "fused" else None, scratch=self._scratch, routed=group.expert,
            shared_ends=choice.shared_ends, state_replicas=self._state_replicas,
        )  # fmt: skip

    @property
    def _state_replicas(self) -> int:
        """Replicas that share the optimizer's state: all, where that is asked for and there is any to share."""
        asked = self.model.config.parallel.overlap.shard_state_over_replicas is True
        return self.group.replica if asked and self.choice.zero else 1

    @property
    def _embedding_messages(self) -> Literal["table", "rows"]:
        """What the trainer would send of the embedding on these GPUs; rows that are named are possible on some layouts
        only, and left to its choice."""
        if is_cpu(self.cluster):
            return "table"
        group, zero = self.group, self.choice.zero
        key = "embedding messages", group, zero
        if key not in self.known:
            config, gpu = self.model.config, DescribedGPU.of(self.cluster.gpu)
            asked = "table" if config.parallel.overlap.embedding_messages == "table" else "auto"
            overlap = replace(config.parallel.overlap, embedding_messages=asked)
            own = replace(config, parallel=replace(config.parallel, zero=zero, overlap=overlap))
            axes = AxisSizes(group.pipe, group.replica, group.fsdp, group.expert, group.context, group.tensor)
            self.known[key] = embedding_messages(own, axes, gpu, group.microbatch, self.cluster).name
        return self.known[key]

    @property
    def _expert_codes(self) -> ExpertCodes:
        """How routed experts are multiplied in FP8."""
        key = "expert codes", self.group.tensor
        if key not in self.known:
            config = self.model.config
            own = replace(config, parallel=replace(config.parallel, tensor=self.group.tensor))
            self.known[key] = grouped_codes(own, DescribedGPU.of(self.cluster.gpu))
        return self.known[key]

    @property
    def _expert_loop(self) -> bool:
        """Whether a run multiplies experts in a loop; not asked on CPUs, whose share is of whatever runs there."""
        if is_cpu(self.cluster):
            return False
        key = "expert loop", self.group.microbatch, self.group.expert, self.group.context, self.group.tensor
        if key not in self.known:
            axes = AxisSizes(expert=self.group.expert, context=self.group.context, tensor=self.group.tensor)
            self.known[key] = loops_on(self.model.config, axes, self.cluster.gpu, self.group.microbatch)
        return self.known[key]

    @property
    def attention(self) -> tuple[tuple[str, Attention], ...]:
        """The kernels of attention that a run takes; none on CPUs, whose share is of whatever runs there."""
        if is_cpu(self.cluster):
            return ()
        group, strategy = self.group, self.choice.context_strategy
        key = "attention", self._rows_attended, group.context, group.tensor, strategy
        if key not in self.known:
            gpu = min(self.cluster.gpus, key=lambda gpu: gpu.compute_capability)
            found = backends_on(self.model.alike(self._bare_case), gpu, strategy)
            self.known[key] = tuple(found.items())
        return self.known[key]

    @property
    def _rows_attended(self) -> int:
        """Rows of a microbatch, where the choice of attention depends on them: cuDNN's packed form takes scratch
        memory for each."""
        return self.group.microbatch if self.model.config.data.packed else 0

    @property
    def _bare_case(self) -> Case:
        """The case of a configuration with these axes, whatever the layers keep."""
        group = self.group
        sizes = group.pipe, group.shards, group.context, group.tensor, group.microbatch
        return Case(*sizes, self._microbatches, 0, self.kinds)

    @property
    def _matmul_codes(self) -> MatmulCodes | None:
        """How other matmuls of layers run in FP8."""
        group, choice = self.group, self.choice
        offload, chunks = "host" if choice.optimizer_offload else "none", group.pipe * choice.virtual_stages
        held = choice.schedule if holds(choice.schedule, choice.virtual_stages, choice.zero, group.shards) else None
        key = "matmul codes", offload, held, self.kinds, chunks
        if key not in self.known:
            self.known[key] = matmul_codes(self.model.config, self.cluster.gpu, *key[1:])
        return self.known[key]

    @property
    def _scratch(self) -> int:
        """Scratch memory of a layer's attention."""
        group, strategy = self.group, self.choice.context_strategy
        key = "scratch", group.microbatch, group.context, group.tensor, strategy
        if key not in self.known:
            self.known[key] = scratch_on(self.model.alike(self._bare_case), self.cluster.gpu, strategy)
        return self.known[key]

    def _units(self, remat: Remat) -> Units:
        """What a chunk's layers keep of a microbatch."""
        group = self.group
        key = "units", group.microbatch, group.expert, group.context, group.tensor, self.kinds, self._splits, remat
        if key not in self.known:
            config, runs = self.model.alike(self.case), runs_of(remat, len(self.kinds), self._names)
            tiles = mlp_tiles(config, runs, self._splits).name
            self.known[key] = self.model.units(self.case, without_hidden(runs, tiles), tiles)
        return self.known[key]

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
        """Of a layer of each kind."""
        group, strategy, codes = self.group, self.choice.context_strategy, self._matmul_codes
        key = "costs", *self._timed
        if key not in self.known:
            axes = AxisSizes(expert=group.expert, context=group.context, tensor=group.tensor)
            attention, exact, experts = dict(self.attention), exact_shares(self.model.config), self._expert_codes
            self.known[key] = {
                kind: layer_costs(
                    replace(shape, codes=experts), self.cluster, strategy, self.hardware,
                    attention=attention.get(kind), codes=codes, exact=exact[kind],
                    magnitude_ranks=self._magnitude_ranks,
                )
                for kind, shape in layer_shapes(self.model.config, axes, group.microbatch).items()
            }  # fmt: skip
        return self.known[key]

    @property
    def _timed(self) -> tuple[Hashable, ...]:
        """What the times of a layer depend on."""
        group, strategy = self.group, self.choice.context_strategy
        sizes = group.microbatch, group.expert, group.context, group.tensor
        return *sizes, strategy, self._matmul_codes, self._magnitude_ranks

    @property
    def _magnitude_ranks(self) -> int:
        """Ranks over which the largest magnitude of a tensor is found in each product; 1 where none is."""
        group, quantized = self.group, self._matmul_codes
        return group.data * group.context * group.tensor if quantized is not None and quantized.found else 1

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
        key = "hidden", *self._timed, self.kinds, preset
        if key not in self.known:
            runs = runs_by_kind(runs_of(preset, len(self.kinds), self._names), self.kinds)
            own = [(self.kinds.count(kind), self.costs[kind]) for kind in runs]
            unit = sum(kept_bytes(runs[kind], self.costs[kind].sizes) for kind in runs)
            forward = sum(layers * costs.forward_seconds for layers, costs in own)
            backward = sum(layers * costs.backward_seconds for layers, costs in own)
            bandwidth = own[0][1].host_bandwidth
            self.known[key] = largest_hidden_fraction(unit, bandwidth, forward, backward).fraction
        return self.known[key]

    @property
    def _frontiers(self) -> dict[str, list[Point]]:
        """Of a layer of each kind, with nothing on the host."""
        return {kind: self._frontier(costs) for kind, costs in self.costs.items()}

    def _frontier(self, costs: LayerCosts) -> list[Point]:
        key = "frontier", *costs.sizes.items(), *costs.recomputations
        if key not in self.known:
            self.known[key] = layer_frontier(costs, offload=False)
        return self.known[key]

    def _mixture(self) -> Iterator[Kept]:
        """The cheapest maps that fill what there is: one or two for layers that are alike, else one for each kind."""
        least = self.least()
        room = self.limit - (least.device - least.saved_activations)
        units = self.slots.stash
        try:
            found = cheapest_of_kinds(self.costs, self.kinds, room // units, points=self._frontiers)
        except NothingFits:
            return
        runs: Runs = joined(LayerRun(layers, of_all_names(own, self._names)) for layers, own in found)
        made = {name for costs in self.costs.values() for name in costs.sizes}
        remat = as_remat(runs, [name for name in self._names if name in made])
        memory = self.memory(remat)
        if memory.device <= self.limit:
            yield self._with_state(Kept(self.layout(remat), memory))

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
