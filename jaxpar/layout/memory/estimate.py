"""Memory that a step takes of a device, by class, in closed form: before anything is compiled, allocated or traced.

Weights come from their declarations and the rules of `mesh.placements`, kept activations from a layer's shape, slots of
the pipeline's buffers from its program, or in a search from formulas (docs/memory-model.md compares the sums with the
compiler's numbers). Three things decide: the case (axis sizes, microbatch, ZeRO, chunks), what the layers keep, and the
schedule's slots. Each is computed once and reused, so that a search covers thousands of layouts per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from jaxpar.config import Config
from jaxpar.config.axes import ROUTED_AXES
from jaxpar.config.counting import head_dim, kv_heads
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import AxisSizes, LayerRun, Plan
from jaxpar.config.schema import ParallelConfig
from jaxpar.layers.declared import hidden_names
from jaxpar.layers.matmul_formats import quantized_matrices, routed_groups
from jaxpar.layout.choices.pipeline import layer_order, pipeline_program, schedule_of
from jaxpar.layout.choices.tiles import loss_tiles
from jaxpar.layout.memory.case import Case
from jaxpar.layout.memory.fixed import Fixed, Work, fixed_bytes
from jaxpar.layout.memory.slots import Slots
from jaxpar.layout.memory.weights import Weights
from jaxpar.memory.fraction import saved_bytes
from jaxpar.memory.layer_shape import FLOAT32_BYTES, LayerShape, activation_bytes, layer_shapes
from jaxpar.memory.remat import offloaded, runs_by_kind
from jaxpar.precision.recipe import recipe_of
from pallas_kernels.attention.packed_room import Shape, scratch_bytes

TWICE = 0.5
"""Share of a unit that waits for W, as found in programs of three split schedules (0.2, 0.5 and 0.9)."""

IN_TRANSIT = 2
"""Layers whose offloaded activations are on the device nevertheless: the one that computes, and the next."""


class MemoryEstimate(NamedTuple):
    """Bytes on one device, in the classes of `jaxpar.inspect`; `host` comes on top."""

    optimizer: int
    """Master weights and moments."""
    weights: int
    """Storage weights made from the master weights, and gathered weights."""
    gradients: int
    """Accumulated gradients, and those of whole layers before they are added to them."""
    saved_activations: int
    """Kept from forward to backward, over all microbatches in flight."""
    temporaries: int
    """A layer's backward or the loss, whichever is larger, and the batch."""
    host: int
    """Pinned memory of the host."""

    @property
    def device(self) -> int:
        """The total on the device."""
        return sum(self) - self.host


class ChunkBytes(NamedTuple):
    """Bytes of one microbatch in one chunk, on one device."""

    stash: int
    """Kept from its forward to its backward in the device's memory."""
    kept: int
    """Kept from a split backward until the weights' gradients are computed."""
    sent: int
    """Handed to the next chunk; the gradient that comes back is as large."""


def estimate_memory(config: Config, plan: Plan) -> MemoryEstimate:
    """The memory that the step of a plan takes; docs/memory-model.md compares it with what XLA allocates for GPUs.

    State, storage weights, accumulated gradients and the stash, and what works on them: the head in the loss or a layer
    in its backward, whichever takes more. What XLA fuses or reorders is not known here.
    """
    model, case = MemoryModel(_with_plan_dtypes(config, plan)), case_of(config, plan)
    return model.estimate(case, model.units(case, plan.runs, plan.mlp_tiles.name), plan_slots(plan))


def estimated_bytes(config: Config, plan: Plan, *, separate_memory: bool = True) -> int:
    """Bytes that the step of a plan takes on a device.

    Of a device without memory of its own (`separate_memory`), which uses the host's, also what is offloaded there.
    """
    estimate = estimate_memory(config, plan)
    return estimate.device if separate_memory else estimate.device + host_bytes(config, plan)


def host_bytes(config: Config, plan: Plan) -> int:
    """Bytes that a device without memory of its own holds besides `MemoryEstimate.device`: what is offloaded.

    State on disk is not there, and pieces of state need no buffers to pass between the two.
    """
    if plan.optimizer_offload == "file":
        return offloaded_bytes(config, plan)
    passing = MemoryModel(_with_plan_dtypes(config, plan)).fixed(case_of(config, plan)).passing
    return max(0, estimate_memory(config, plan).host - passing)


def offloaded_bytes(config: Config, plan: Plan) -> int:
    """Bytes in the host's memory of each device's activations: as many chunks as its stash has slots."""
    if not offloaded(plan.runs):
        return 0
    return plan_slots(plan).stash * MemoryModel(config).units(case_of(config, plan), plan.runs).offloaded


def chunk_bytes(config: Config, plan: Plan) -> ChunkBytes:
    """Bytes that the chunks of a plan save and send; a chunk of fewer layers is padded, and keeps as much."""
    model, case = MemoryModel(_with_plan_dtypes(config, plan)), case_of(config, plan)
    fixed = model.fixed(case)
    splits = schedule_of(plan).splits_backward
    return ChunkBytes(model.units(case, plan.runs).saved, splits * fixed.for_weights, fixed.between)


def split_backward_bytes(config: Config, plan: Plan) -> int:
    """Bytes that a chunk saves of a microbatch until the weights' gradients, where a schedule splits the backward."""
    return MemoryModel(_with_plan_dtypes(config, plan)).fixed(case_of(config, plan)).for_weights


def case_of(config: Config, plan: Plan) -> Case:
    """Facts of a plan that its memory depends on, apart from what its layers keep and its schedule."""
    axes = plan.axes
    return Case(
        axes.pipe, axes.shards, axes.context, axes.tensor, plan.microbatch_rows,
        plan.microbatches, plan.zero, tuple(slot.kind for slot in layer_order(plan, config.model).slots),
        plan.virtual_stages, plan.optimizer_offload, plan.resident_weights,
        plan.pipe_ends == "shared" and axes.pipe > 1, plan.weights_offload == "host",
        plan.hpz, plan.loss_tiles.name, axes.routed,
        _attention_scratch(config, plan), plan.layer_unroll.name,
        axes.replica if plan.shard_state_over_replicas.name else 1,
    )  # fmt: skip


def _attention_scratch(config: Config, plan: Plan) -> int:
    """Scratch memory of a layer's attention: that of cuDNN for packed documents."""
    if not config.data.packed:
        return 0
    ranks = plan.axes.tensor * plan.axes.context
    sizes = [
        scratch_bytes(
            Shape(
                plan.microbatch_rows,
                config.data.sequence_length,  # cuDNN attends over whole rows
                model.heads // ranks,
                max(1, kv_heads(model) // ranks),
                head_dim(model),
            )
        )
        for kind, model in kind_models(config.model).items()
        if kind in plan.attention and plan.attention[kind].name == "cudnn"
    ]
    return max(sizes, default=0)


def plan_slots(plan: Plan) -> Slots:
    """The slots of the buffers of a plan's pipeline."""
    return Slots.from_program(pipeline_program(plan))


def _with_plan_dtypes(config: Config, plan: Plan) -> Config:
    """`config` with the dtypes of a plan."""
    dtypes = asdict(plan.dtypes)
    del dtypes["master"], dtypes["matrix"]  # no settings
    sent = {"weights": dtypes.pop("weight_message"), "gradients": dtypes.pop("gradient_message")}
    parallel = replace(config.parallel, quantized=replace(config.parallel.quantized, **sent))
    return replace(config, parallel=parallel, precision=replace(config.precision, **dtypes))


class Units(NamedTuple):
    """Bytes that the layers of a chunk keep and make, for one microbatch on one device."""

    saved: int
    """Bytes of the chunk on the device."""
    offloaded: int
    """Bytes of the chunk on the host."""
    kept: int
    """Both, as they are without tiles."""
    back: int
    """Bytes saved by the layer that saves least, without tiles: so much the next layer of a turn has read."""
    transit: int
    """Bytes offloaded by the layer that offloads most."""
    again: int
    """Bytes in a layer's backward: all that it computes and the cotangents of that, its feed-forward in tiles, less
    what the layer that saves the least saves."""


@dataclass(frozen=True)
class MemoryModel:
    """The memory of every layout of one configuration; its `parallel` and `memory.remat` are not used."""

    config: Config

    @cached_property
    def weights(self) -> Weights:
        """Weights of the model."""
        return Weights(self.config)

    @cached_property
    def _known(self) -> dict[Any, Any]:
        return {}

    def units(self, case: Case, runs: Sequence[LayerRun], tiles: int = 1) -> Units:
        """Bytes that layers with these `runs` save, with their feed-forward in `tiles` tiles.

        `runs` must not have what a feed-forward in tiles does not keep.
        """
        shapes = self.shapes(case)
        each = [
            _units(activation_bytes(shapes[kind]), kind_runs, tiles)
            for kind, kind_runs in runs_by_kind(runs, case.slots).items()
        ]
        saved, offloaded, kept, back, transit, again = zip(*each, strict=True)
        scales = sum(
            run.layers * self._scales(shapes[kind])
            for kind, kind_runs in runs_by_kind(runs, case.slots).items()
            for run in kind_runs
        )
        return Units(sum(saved) + scales, sum(offloaded), sum(kept) + scales, max(back), max(transit), max(again))

    def _scales(self, shape: LayerShape) -> int:
        """Bytes of the scales of a layer's routed rows, which every remat policy saves: one for each group."""
        recipe = recipe_of(self.config.precision)
        if recipe is None or recipe.from_history or recipe.tiles is not None:
            return 0
        groups = quantized_matrices(self.config, shape.model)
        routed = sum(group.name in groups for _, group in routed_groups(shape.model))
        return FLOAT32_BYTES * routed * shape.routed_rows

    def estimate(self, case: Case, units: Units, slots: Slots) -> MemoryEstimate:
        """Bytes on a device, for layers that keep `units`."""
        fixed = self.fixed(case)
        head, layer = fixed.head, fixed.layer
        zeros = slots.heads * fixed.head_gradient if fixed.zeros else 0
        in_head = head._replace(gradients=head.gradients + fixed.head_gradient, temporaries=head.temporaries + zeros)
        ahead = (case.layer_unroll - 1) * units.back
        in_layer = layer._replace(temporaries=layer.temporaries + units.again + ahead)
        work = in_head if sum(in_head) >= sum(in_layer) else in_layer
        if case.pipe > 1 and case.virtual_stages == 1 and len(case.rows_of) > 1:
            # Layers of several kinds are not one loop: XLA moves what a slot reads out of the loop over ticks, and
            # starts a layer while the head runs. Found in programs of 4 to 10 slots, of two kinds.
            both = head.temporaries + in_layer.temporaries + (zeros if work is in_head else 0)
            work = work._replace(weights=work.weights + fixed.chunk, temporaries=both)
        if case.state == "file":
            work = _leaving(work, fixed.leaving, fixed.host, case.alone)
        # Units from B to W: one is written, layer by layer, while another is read; XLA holds half of it twice.
        waiting = slots.kept + (TWICE if slots.kept else 0.0)
        gradients = fixed.chunk_gradients * slots.gradients
        estimate = MemoryEstimate(
            optimizer=fixed.optimizer,
            weights=work.weights + fixed.chunk * slots.weights,
            gradients=work.gradients + gradients,
            saved_activations=slots.stash * units.saved + int(waiting * fixed.for_weights),
            temporaries=slots.sent * fixed.between
            + work.temporaries
            + fixed.batch
            + fixed.beside
            + IN_TRANSIT * units.transit,
            host=fixed.host + slots.stash * units.offloaded,
        )
        if not case.layers_on_host:
            return estimate
        # Pieces of the state and of gradients are fetched when what a layer needs is freed.
        others = estimate.device - fixed.passing
        return estimate._replace(optimizer=fixed.optimizer - fixed.passing + max(0, fixed.update - others))

    def shapes(self, case: Case) -> dict[str, LayerShape]:
        """The shape of a layer of each kind on a device."""
        key = "shapes", case.rows, case.context, case.tensor, case.routed
        if key not in self._known:
            axes = AxisSizes(context=case.context, tensor=case.tensor, **dict.fromkeys(ROUTED_AXES, case.routed))
            self._known[key] = layer_shapes(self.config, axes, case.rows)
        return self._known[key]

    def alike(self, case: Case) -> Config:
        """The configuration on a mesh whose devices have the same number of tokens, columns and hidden activations."""
        parallel = ParallelConfig(
            pipe=case.pipe, context=case.context, tensor=case.tensor,
            pipe_ends="shared" if case.shared_embed_and_head else "last",
            microbatches=self.config.data.batch_size // case.rows,
        )  # fmt: skip
        return replace(self.config, parallel=parallel)

    def fixed(self, case: Case) -> Fixed:
        """Bytes that a case takes whatever its layers save."""
        if case not in self._known:
            self._known[case] = fixed_bytes(
                self.config, self.weights, case, self.shapes(case), case.loss_tiles or self.loss_tiles(case)
            )
        return self._known[case]

    def loss_tiles(self, case: Case) -> int:
        """Tiles of a microbatch's tokens in the head."""
        key = "loss tiles", case.rows, case.context, case.tensor, case.vocab_ranks
        if key not in self._known:
            self._known[key] = loss_tiles(self.alike(case)).name
        return self._known[key]


def _units(sizes: Mapping[str, int], runs: Sequence[LayerRun], tiles: int) -> Units:
    """Bytes that the layers of one kind in a chunk save and make."""
    hidden = hidden_names() if tiles > 1 else ()
    made = {name: size // (tiles if name in hidden else 1) for name, size in sizes.items()}
    least = lambda of: min(sum(n for name, n in of.items() if run.activations[name] == "save") for run in runs)
    in_transit = (sum(n for name, n in sizes.items() if run.activations[name] == "offload") for run in runs)
    return Units(
        saved=saved_bytes(runs, sizes, "save"),
        offloaded=saved_bytes(runs, sizes, "offload"),
        kept=saved_bytes(runs, sizes),
        back=least(sizes),
        transit=max(in_transit, default=0),
        again=2 * sum(made.values()) - least(made),
    )


def _leaving(work: Work, leaving: Work, pieces: int, alone: bool) -> Work:
    """Bytes with the state on disk: all weights are arguments and all gradients results, for the whole step.

    The update comes after the step, and its pieces take the place of what that needed.
    """
    if alone:
        work = work._replace(weights=leaving.weights, gradients=leaving.gradients)
    return work._replace(temporaries=max(work.temporaries + leaving.temporaries, pieces))
