"""What a step takes of a device's memory, by class, in closed form: thousands of layouts in a second.

It is the estimate of `training.memory_estimate` with nothing traced (docs/planner.md has it beside the compiler's
numbers): weights from their declarations and the rules of `mesh.placements`, kept activations from a layer's shape,
slots of the pipeline's buffers from formulas. State in files, which no search chooses, is taken for state on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import NamedTuple

from jaxpar.config import Config
from jaxpar.config.axes import AXES
from jaxpar.config.counting import kv_heads, padded_vocab
from jaxpar.config.plan import AxisSizes, LayerRun, Plan
from jaxpar.memory.layer_shape import FLOAT32_BYTES, ITEM_BYTES, LayerShape, activation_bytes, layer_shape
from jaxpar.memory.streaming import PIECE_BYTES, PIECES
from jaxpar.mesh.parameters import ParamSpec, Tree
from jaxpar.mesh.placements import SHARD_ORDER
from jaxpar.mesh.rules import compute_rules
from jaxpar.model.decoder import decoder_specs
from jaxpar.optim.moments import Blocks, form_of
from jaxpar.pipeline.schedules import SCHEDULES
from jaxpar.training.memory_estimate import IN_TRANSIT, TWICE, MemoryEstimate
from jaxpar.training.tiles import HIDDEN, loss_tiles

BATCH_BYTES = 6 * 4
"""Of a token: tokens, labels, mask, segments, positions, slots."""


class Slots(NamedTuple):
    """Slots of each buffer of a pipeline's program, and how many of its runs of ticks have a loss."""

    stash: int
    arrivals: int
    cotangents: int
    outputs: int
    kept: int
    weights: int
    gradients: int
    heads: int

    @property
    def sent(self) -> int:
        """Buffers of what goes from rank to rank."""
        return self.arrivals + self.cotangents + self.outputs


@cache
def pipeline_slots(schedule: str, ranks: int, microbatches: int, virtual_stages: int, hold: bool = False) -> Slots:
    """The slots that `pipeline.program` gives a published schedule: by formula, since a program takes up to a second.

    F and B of a chunk on rank 0 are 2 (p - 1) ticks apart, and every tick brings a new one; chunks that wait for the
    others of a rank add p each. GPipe and breadth-first keep all. In a V a rank's two chunks are in flight for 4 p
    ticks together, and every second tick brings a microbatch.
    """
    p, m, v = ranks, microbatches, virtual_stages
    if schedule == "one-stage" or p == 1:
        return Slots(1, 0, 0, 1, 0, 0, 0, 1)
    whole, split = m * v, SCHEDULES[schedule].splits_backward
    waiting = max(1, m - p + 1) if schedule == "breadth-first" and v > 1 else 1
    stash = {
        "gpipe": whole,
        "breadth-first": whole,
        "zb-v": 2 * p,
        "dualpipe-v": 2 * p + 1,
        "v-half": 2 * p,
    }.get(schedule, 2 * (p - 1) + (v - 1) * p + 1)
    return Slots(
        stash=min(whole, stash),
        arrivals=2 if schedule in ("zb-v", "dualpipe-v") else waiting,
        cotangents=waiting,
        outputs=m if schedule in ("gpipe", "breadth-first") else 1,
        kept=min(p, whole + 1) if split else 0,
        weights=min(v, 2) if hold else 0,
        gradients=min(v, 2) if hold else 0,
        heads=_runs_with_loss(schedule, p, m, v),
    )


def _runs_with_loss(schedule: str, p: int, m: int, v: int) -> int:
    """Runs of ticks in which the last chunk goes backward, of at least as many microbatches as ranks."""
    match schedule:
        case "1f1b":
            return 1
        case "interleaved":
            return 1 if m == p else 2
        case "zb-uniform":
            return 2 if v == 1 or m == p else 3
        case "zb-v" | "v-half":
            return min(p, 4) + (m > p)
        case "dualpipe-v":
            return {2: 3, 3: 5, 4: 6}.get(p, 7)
    return 2


class _Part(NamedTuple):
    """Elements of one part of the model on a device; of the layers, of one layer."""

    compute: int
    """As they are multiplied."""
    sharded: int
    """Split over fsdp, expert and context besides."""
    state: float
    """Bytes of master weights and moments where those are split like `sharded`."""
    whole_state: float
    """Those where they are split like `compute`."""
    largest: float
    """Of the state of one weight alone, split like `sharded`."""
    whole_largest: float
    """The same, split like `compute`."""


class _Ends(NamedTuple):
    """Bytes by part of the model."""

    layers: int
    embedding: int
    head: int
    final_norm: int

    @property
    def all(self) -> int:
        return sum(self)


@dataclass(frozen=True)
class MemoryModel:
    """The memory of every layout of one configuration; its `parallel` and `memory.remat` play no part."""

    config: Config

    @cached_property
    def _specs(self) -> Tree:
        return decoder_specs(self.config, 1)

    @cached_property
    def _parts(self) -> dict[tuple[int, int, int], dict[str, _Part]]:
        return {}

    def estimate(self, config: Config, runs: Sequence[LayerRun], slots: Slots, chunk_layers: int) -> MemoryEstimate:
        """Bytes on a device of `config`, a layout of this model, whose layers keep `runs`.

        Args:
            config: with every mesh axis and a schedule; its data, model and precision are those of this model.
            runs: of a chunk; what a feed-forward in tiles does not keep is left out already.
            slots: of the pipeline.
            chunk_layers: of the longest chunk.
        """
        return _Layout(self, config, tuple(runs), slots, chunk_layers).estimate()

    def of_plan(self, config: Config, plan: Plan) -> MemoryEstimate:
        """Bytes on a device of a plan that the trainer made of `config`."""
        shards = plan.axes.fsdp * plan.axes.expert * plan.axes.context
        hold = holds(plan.schedule, plan.virtual_stages, plan.zero, shards)
        slots = pipeline_slots(plan.schedule, plan.axes.pipe, plan.microbatches, plan.virtual_stages, hold)
        parallel = replace(config.parallel, virtual_stages=plan.virtual_stages)
        config = replace(config, parallel=parallel, memory=replace(config.memory, mlp_tiles=plan.mlp_tiles))
        return self.estimate(config, plan.runs, slots, max(plan.stage_layers))

    def parts(self, axes: AxisSizes, shared_ends: bool) -> dict[str, _Part]:
        """Elements and state of each part."""
        shards = axes.fsdp * axes.expert * axes.context
        key = axes.tensor, shards, axes.pipe if shared_ends else 1
        if key not in self._parts:
            self._parts[key] = {name: self._part(tree, *key) for name, tree in self._specs.items()}
        return self._parts[key]

    def _part(self, tree: Tree, tensor: int, shards: int, pipe: int) -> _Part:
        found = [self._weight(spec, tensor, shards, pipe) for spec in _leaves(tree)]
        compute, sharded, state, whole, largest, whole_largest = zip(*found, strict=True)
        return _Part(sum(compute), sum(sharded), sum(state), sum(whole), max(largest), max(whole_largest))

    def _weight(self, spec: ParamSpec, tensor: int, shards: int, pipe: int) -> _Part:
        """Of one weight, as `mesh.placements` lays it."""
        rules = compute_rules(kv_heads=kv_heads(self.config.model), tensor=tensor, shared_ends=pipe > 1)
        sizes = {"tensor": tensor, "pipe": pipe}
        dims = [(name, size) for name, size in zip(spec.axes, spec.shape, strict=True) if name != "layers"]
        local = {name: size // prod(sizes[axis] for axis in getattr(rules, name)) for name, size in dims}
        compute = prod(local.values())
        divides = len(dims) > 1 and any(local[name] % shards == 0 for name in SHARD_ORDER if name in local)
        sharded = compute // shards if divides else compute
        each = self._state_bytes(spec)
        return _Part(compute, sharded, sharded * each, compute * each, sharded * each, compute * each)

    def _state_bytes(self, spec: ParamSpec) -> float:
        """Bytes of master weight, moments and average for each element."""
        optimizer, moments = self.config.optimizer, self.config.precision.moments
        each = FLOAT32_BYTES * (2 if optimizer.ema is not None else 1)
        if optimizer.name == "adafactor":
            dims = [size for name, size in zip(spec.axes, spec.shape, strict=True) if name != "layers"]
            inputs, outputs = prod(dims[: spec.inputs]), prod(dims[spec.inputs :])
            return each + (FLOAT32_BYTES / inputs + FLOAT32_BYTES / outputs if len(dims) > 1 else FLOAT32_BYTES)
        form = form_of(moments, spec)
        if isinstance(form, Blocks):
            width = 1 + FLOAT32_BYTES / form.size
        else:
            width = 2 if form == "bfloat16" else FLOAT32_BYTES
        single = optimizer.name == "lion" or (optimizer.name == "muon" and spec.matrix)
        return each + width * (1 if single else 2)


@dataclass(frozen=True)
class _Layout:
    """One layout: the sums of `training.memory_estimate`, whose names these functions have."""

    model: MemoryModel
    config: Config
    runs: tuple[LayerRun, ...]
    slots: Slots
    chunk_layers: int

    def estimate(self) -> MemoryEstimate:
        state, host = self._state()
        device, offloaded = self._kept("save"), self._kept("offload")
        work = max(self._in_head(), self._in_layer(), key=sum)
        return MemoryEstimate(
            optimizer=state,
            weights=work[0] + self._held(1.0),
            gradients=work[1] + self._held(self._widening),
            saved_activations=self.slots.stash * device + int(self._kept_units * self._kept_for_weights()),
            temporaries=self.slots.sent * self.sizes["layer_input"] + work[2] + self._batch() + self._in_transit(),
            host=host + self.slots.stash * offloaded,
        )

    @cached_property
    def axes(self) -> AxisSizes:
        parallel = self.config.parallel
        return AxisSizes(*(getattr(parallel, axis) for axis in AXES))

    @cached_property
    def rows(self) -> int:
        return self.config.data.batch_size // (self.axes.data * self.config.parallel.microbatches)

    @cached_property
    def shape(self) -> LayerShape:
        return layer_shape(self.config, self.axes, self.rows)

    @cached_property
    def sizes(self) -> dict[str, int]:
        return activation_bytes(self.shape)

    @cached_property
    def parts(self) -> dict[str, _Part]:
        return self.model.parts(self.axes, self._shares_ends)

    @property
    def _shares_ends(self) -> bool:
        return self.config.parallel.pipe_ends == "shared" and self.axes.pipe > 1

    @property
    def _shards(self) -> int:
        return self.axes.fsdp * self.axes.expert * self.axes.context

    @cached_property
    def _local_layers(self) -> int:
        """Rows of the stack on a device."""
        return self.chunk_layers * (self.config.parallel.virtual_stages or 1)

    @property
    def _widths(self) -> tuple[int, int, int]:
        """Bytes of compute, storage and gradient."""
        precision = self.config.precision
        storage = precision.storage or precision.compute
        return ITEM_BYTES[precision.compute], ITEM_BYTES[storage], ITEM_BYTES[precision.gradient]

    @property
    def _widening(self) -> float:
        compute, _, gradient = self._widths
        return gradient / compute

    def _bytes(self, width: int, layers_sharded: bool, ends_sharded: bool) -> _Ends:
        def size(name: str) -> int:
            if name not in self.parts:
                return 0
            sharded = layers_sharded if name == "layers" else ends_sharded
            part = self.parts[name]
            return width * (part.sharded if sharded else part.compute) * (self._local_layers if name == "layers" else 1)

        return _Ends(*map(size, _Ends._fields))

    @cached_property
    def _stored(self) -> _Ends:
        _, width, _ = self._widths
        parallel, precision = self.config.parallel, self.config.precision
        zero = parallel.zero
        sharded = zero >= 3
        ends = sharded and self.axes.pipe == 1
        same = (precision.storage or precision.compute) == precision.master and (self._shards == 1 or zero == 0 or ends)
        if same and self.config.memory.optimizer_offload == "none":
            return _Ends(0, 0, 0, 0)
        return self._bytes(width, sharded, ends)

    @cached_property
    def _accumulated(self) -> _Ends:
        _, _, width = self._widths
        zero, whole = self.config.parallel.zero, self.axes.pipe == 1
        return self._bytes(width, zero >= 3 or (zero == 2 and whole), zero >= 2 and whole)

    @property
    def _layer(self) -> int:
        return self._widths[0] * self.parts["layers"].compute

    @property
    def _gathers_layers(self) -> bool:
        return self.config.parallel.zero >= 3 and self._shards > 1

    @property
    def _gathered_layers(self) -> int:
        return 2 * self._layer if self._gathers_layers else 0

    @property
    def _alone(self) -> bool:
        return self.config.parallel.microbatches == 1 and self.axes.pipe == 1

    def _state(self) -> tuple[int, int]:
        name = "state" if self.config.parallel.zero >= 1 else "whole_state"
        each = {part: getattr(own, name) for part, own in self.parts.items()}
        total = int(sum(size * (self._local_layers if part == "layers" else 1) for part, size in each.items()))
        if self.config.memory.optimizer_offload == "none":
            return total, 0
        host = max(0, total - self.config.memory.optimizer_resident)
        return total - host + min(host, PIECES * max(PIECE_BYTES, self._largest_piece())), host

    def _largest_piece(self) -> int:
        """Bytes of a layer of the largest weight, or of all of a weight under Adafactor; other rows are small."""
        name = "largest" if self.config.parallel.zero >= 1 else "whole_largest"
        each = {part: getattr(own, name) for part, own in self.parts.items()}
        if self.config.optimizer.name == "adafactor":
            return int(max(size * (self._local_layers if part == "layers" else 1) for part, size in each.items()))
        return int(each["layers"])

    def _in_head(self) -> tuple[int, int, int]:
        """Weights, gradients and temporaries while the loss is differentiated."""
        model, parallel = self.config.model, self.config.parallel
        name = "embedding" if model.tied else "head"
        gathers = parallel.zero >= 3 and self.axes.pipe == 1 and self.parts[name].sharded < self.parts[name].compute
        head = self._widths[0] * self.parts[name].compute
        tiles = loss_tiles(self.config).number
        ranks = self.axes.tensor * (self.axes.pipe if self._shares_ends else 1)
        logits = 4 * (self.shape.tokens // tiles) * padded_vocab(model) // ranks
        weights, gradients = self._stored, self._accumulated
        if self._alone:
            gradients = _Ends(gradients.layers, 0, 0, 0)
            weights = weights if model.tied else weights._replace(embedding=0)
        layers = self._gathered_layers // (1 if self.axes.pipe > 1 else 2)
        anew = model.tied or self.axes.tensor > 1 or (self._alone and not gathers)
        zeros = self.slots.heads if tiles > 1 and not anew else 0
        return (
            weights.all + gathers * head + layers,
            gradients.all + int((1 + zeros) * head * self._widening),
            logits * (3 if tiles == 1 else 4) // 2,
        )

    def _in_layer(self) -> tuple[int, int, int]:
        """Those in a layer's backward."""
        tied = self.config.model.tied
        tiles = self.config.memory.mlp_tiles or 1
        made = {name: size // (tiles if name in HIDDEN else 1) for name, size in self.sizes.items()}
        kept = min(sum(size for name, size in made.items() if run.activations[name] == "save") for run in self.runs)
        whole = self.shape.tokens * self.shape.embed * self._widths[0]
        weights, gradients = self._stored, self._accumulated
        if self._alone:
            weights = _Ends(weights.layers, 0, 0, 0)
            gradients = gradients if tied else gradients._replace(embedding=0)
        return (
            weights.all + self._gathered_layers,
            gradients.all + int(self._layer * self._widening),
            2 * sum(made.values()) - kept + (4 * whole if self.axes.tensor > 1 else 0),
        )

    def _kept(self, treatment: str) -> int:
        """Bytes of one microbatch in one chunk."""
        return sum(
            run.layers * sum(size for name, size in self.sizes.items() if run.activations[name] == treatment)
            for run in self.runs
        )

    @property
    def _kept_units(self) -> float:
        """Units from B to W: one is written, layer by layer, while another is read; XLA holds half of it twice."""
        return self.slots.kept + (TWICE if self.slots.kept else 0.0)

    def _in_transit(self) -> int:
        """On its way to the host or back: what is offloaded of the layer that computes, and of the next."""
        each = (
            sum(self.sizes.get(n, 0) for n, own in run.activations.items() if own == "offload") for run in self.runs
        )
        return IN_TRANSIT * max(each, default=0)

    def _kept_for_weights(self) -> int:
        """Inputs and output gradients of all matmuls of a chunk: what a split backward leaves for W."""
        sizes, gated = self.sizes, self.shape.gated
        between, hidden = sizes["layer_input"], sizes["mlp_up"]
        attention = between + sizes["query"] + sizes["key"] + sizes["value"] + sizes["attention_output"] + between
        return self.chunk_layers * (attention + between + (3 if gated else 2) * hidden + between)

    def _held(self, width: float) -> int:
        slots = self.slots.weights if width == 1.0 else self.slots.gradients
        return int(width * self._layer * self.chunk_layers * slots)

    def _batch(self) -> int:
        return BATCH_BYTES * self.shape.tokens * self.config.parallel.microbatches


def _leaves(tree: Tree) -> list[ParamSpec]:
    return [tree] if isinstance(tree, ParamSpec) else [leaf for branch in tree.values() for leaf in _leaves(branch)]


def holds(schedule: str, virtual_stages: int, zero: int, shards: int) -> bool:
    """Whether chunks are held whole while microbatches go through them, as `training.pipeline.holds_chunks` says."""
    return zero == 3 and shards > 1 and schedule == "breadth-first" and virtual_stages > 1
