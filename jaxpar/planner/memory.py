"""What a step takes of a device's memory, by class, in closed form: thousands of layouts in a second.

It is the estimate of `training.memory_estimate` with nothing traced (docs/planner.md has it beside the compiler's
numbers): weights from their declarations and the rules of `mesh.placements`, kept activations from a layer's shape,
slots of the pipeline's buffers from formulas. Three things decide: the case (axis sizes, microbatch, ZeRO, chunks),
what the layers keep, and the schedule's slots. A search meets each of them often; each is worked out once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from jaxpar.config import Config
from jaxpar.config.plan import AxisSizes, LayerRun, Plan
from jaxpar.config.schema import ParallelConfig
from jaxpar.layers.declared import hidden_names
from jaxpar.memory.fraction import kept_bytes
from jaxpar.memory.layer_shape import LayerShape, activation_bytes, layer_shapes
from jaxpar.memory.remat import runs_by_kind
from jaxpar.planner.chunks import chunk_slots
from jaxpar.planner.memory_case import Case, Fixed, Work, fixed_bytes
from jaxpar.planner.memory_slots import Slots, holds, pipeline_slots
from jaxpar.planner.memory_weights import Weights
from jaxpar.training.memory_estimate import IN_TRANSIT, TWICE, MemoryEstimate
from jaxpar.training.tiles import loss_tiles


class Units(NamedTuple):
    """Bytes that the layers of a chunk keep and make, for one microbatch on one device."""

    saved: int
    """On the device, of the chunk."""
    offloaded: int
    """On the host, of the chunk."""
    kept: int
    """Both, taken as they are without tiles."""
    back: int
    """What the layer that saves the least saves, without tiles."""
    transit: int
    """Of the layer that offloads the most, what goes to the host."""
    again: int
    """In a layer's backward: all that it makes and the cotangents of that, its feed-forward in tiles, less what the
    layer that saves the least saves."""


@dataclass(frozen=True)
class MemoryModel:
    """The memory of every layout of one configuration; its `parallel` and `memory.remat` play no part."""

    config: Config

    @cached_property
    def weights(self) -> Weights:
        """Of the model."""
        return Weights(self.config)

    @cached_property
    def _known(self) -> dict[Any, Any]:
        return {}

    def of_plan(self, config: Config, plan: Plan) -> MemoryEstimate:
        """Bytes on a device of a plan that the trainer made of `config`."""
        axes = plan.axes
        shards = axes.fsdp * axes.expert * axes.context
        case = Case(
            axes.pipe, shards, axes.context, axes.tensor, plan.microbatch_rows, plan.microbatches, plan.zero,
            chunk_slots(config.model, plan.stage_layers), plan.virtual_stages, plan.optimizer_offload,
            config.memory.optimizer_resident, plan.pipe_ends == "shared" and axes.pipe > 1,
        )  # fmt: skip
        hold = holds(plan.schedule, plan.virtual_stages, plan.zero, shards)
        slots = pipeline_slots(plan.schedule, axes.pipe, plan.microbatches, plan.virtual_stages, hold)
        return self.estimate(case, self.units(case, plan.runs, plan.mlp_tiles or 1), slots)

    def units(self, case: Case, runs: Sequence[LayerRun], tiles: int = 1) -> Units:
        """What layers that do `runs` keep, with their feed-forward in so many tiles.

        What a feed-forward in tiles does not keep is left out of `runs` already.
        """
        shapes = self.shapes(case)
        each = [
            _units(activation_bytes(shapes[kind]), own, tiles) for kind, own in runs_by_kind(runs, case.slots).items()
        ]
        saved, offloaded, kept, back, transit, again = zip(*each, strict=True)
        return Units(sum(saved), sum(offloaded), sum(kept), max(back), max(transit), max(again))

    def estimate(self, case: Case, units: Units, slots: Slots) -> MemoryEstimate:
        """Bytes on a device, of layers that keep `units`."""
        fixed = self._fixed_of(case)
        head, layer = fixed.head, fixed.layer
        zeros = slots.heads if fixed.zeros else 0
        in_head = head._replace(gradients=head.gradients + int((1 + zeros) * fixed.head_gradient))
        in_layer = layer._replace(temporaries=layer.temporaries + units.again)
        work = in_head if sum(in_head) >= sum(in_layer) else in_layer
        if case.pipe > 1 and case.virtual_stages == 1 and len(case.rows_of) > 1:  # as `memory_estimate._of_kinds`
            both = in_head.temporaries + in_layer.temporaries
            work = work._replace(weights=work.weights + fixed.chunk, temporaries=both)
        if case.state == "file":
            work = _leaving(work, fixed.leaving, fixed.host, case.alone)
        # Units from B to W: one is written, layer by layer, while another is read; XLA holds half of it twice.
        waiting = slots.kept + (TWICE if slots.kept else 0.0)
        held = fixed.widening * fixed.chunk * slots.gradients
        return MemoryEstimate(
            optimizer=fixed.optimizer,
            weights=work.weights + fixed.chunk * slots.weights,
            gradients=work.gradients + int(held),
            saved_activations=slots.stash * units.saved + int(waiting * fixed.for_weights),
            temporaries=slots.sent * fixed.between + work.temporaries + fixed.batch + IN_TRANSIT * units.transit,
            host=fixed.host + slots.stash * units.offloaded,
        )

    def shapes(self, case: Case) -> dict[str, LayerShape]:
        """Of a layer of each kind on a device."""
        key = "shapes", case.rows, case.context, case.tensor
        if key not in self._known:
            axes = AxisSizes(context=case.context, tensor=case.tensor)
            self._known[key] = layer_shapes(self.config, axes, case.rows)
        return self._known[key]

    def alike(self, case: Case) -> Config:
        """The configuration with a mesh whose devices have as many tokens, columns and hidden activations each."""
        parallel = ParallelConfig(
            pipe=case.pipe, context=case.context, tensor=case.tensor,
            pipe_ends="shared" if case.shared_ends else "last",
            microbatches=self.config.data.batch_size // case.rows,
        )  # fmt: skip
        return replace(self.config, parallel=parallel)

    def _fixed_of(self, case: Case) -> Fixed:
        if case not in self._known:
            self._known[case] = fixed_bytes(self.config, self.weights, case, self.shapes(case), self.loss_tiles(case))
        return self._known[case]

    def loss_tiles(self, case: Case) -> int:
        """Parts that the tokens of a microbatch take the head in."""
        key = "loss tiles", case.rows, case.context, case.tensor, case.ends
        if key not in self._known:
            self._known[key] = loss_tiles(self.alike(case)).number
        return self._known[key]


def _units(sizes: Mapping[str, int], runs: Sequence[LayerRun], tiles: int) -> Units:
    """Of the layers of one kind in a chunk."""
    made = {name: size // (tiles if name in hidden_names() else 1) for name, size in sizes.items()}
    least = lambda of: min(sum(n for name, n in of.items() if run.activations[name] == "save") for run in runs)
    away = (sum(n for name, n in sizes.items() if run.activations[name] == "offload") for run in runs)
    return Units(
        saved=kept_bytes(runs, sizes, "save"),
        offloaded=kept_bytes(runs, sizes, "offload"),
        kept=kept_bytes(runs, sizes),
        back=least(sizes),
        transit=max(away, default=0),
        again=2 * sum(made.values()) - least(made),
    )


def _leaving(work: Work, leaving: Work, pieces: int, alone: bool) -> Work:
    """Where the state rests in files: all weights are arguments and all gradients results, from beginning to end.

    The update comes after the step, and its pieces take the place of what that needed.
    """
    if alone:
        work = work._replace(weights=leaving.weights, gradients=leaving.gradients)
    return work._replace(temporaries=max(work.temporaries + leaving.temporaries, pieces))
