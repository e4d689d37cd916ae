"""What a step takes of a device's memory, by class, from shapes alone: before anything is compiled or allocated."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxpar.config.counting import padded_vocab
from jaxpar.config.plan import LayerRun
from jaxpar.layers.declared import hidden_names
from jaxpar.memory.layer_shape import activation_bytes, layer_shapes
from jaxpar.memory.remat import runs_by_kind
from jaxpar.memory.streaming import PIECE_BYTES, PIECES
from jaxpar.mesh.layer_order import LAYERS, own_layers
from jaxpar.mesh.parameters import Tree, map_specs
from jaxpar.mesh.placements import Placement, local_shape
from jaxpar.training.activation_memory import chunk_bytes
from jaxpar.training.memory_check import pinned_state_bytes, state_bytes
from jaxpar.training.step import TrainStep
from jaxpar.training.weight_update import weight_states
from jaxpar.training.weights_away import away_gradient_bytes

TWICE = 0.5
"""Of a unit that waits for W: what was found in programs of three split schedules (0.2, 0.5 and 0.9)."""

IN_TRANSIT = 2
"""Layers whose offloaded activations are on the device all the same: the one that computes, and the next."""


class MemoryEstimate(NamedTuple):
    """Bytes on one device, in the classes of `jaxpar.inspect`; `host` comes on top."""

    optimizer: int
    """Master weights and moments."""
    weights: int
    """Storage weights made from the master weights, and what is gathered of them."""
    gradients: int
    """Accumulated, and whole layers' on their way there."""
    saved_activations: int
    """Kept from forward to backward, over all microbatches in flight."""
    temporaries: int
    """A layer's backward or the loss, whichever is larger, and the batch."""
    host: int
    """Pinned memory of the host."""

    @property
    def device(self) -> int:
        """All that is on the device."""
        return sum(self) - self.host


def estimate_memory(step: TrainStep) -> MemoryEstimate:
    """What `step` takes, within about 10% of what XLA allocates for GPUs. Takes the tracing of one layer.

    State, storage weights, accumulated gradients and the stash, and what works on them: the head in the loss or a layer
    in its backward, whichever takes more. What XLA fuses or orders otherwise is not known here.
    """
    resting, host = state_sizes(step)
    chunk, slots = chunk_bytes(step), step.program.slots
    buffers = chunk.sent * sum(slots[name] for name in ("arrivals", "cotangents", "outputs"))
    work = _of_kinds(step, max(_in_head(step), _in_layer(step), key=sum))
    if step.filed is not None:
        # The update comes after the step, and its pieces take the place of what that needed.
        work = _leaving(step, work)
        work = work._replace(temporaries=max(work.temporaries, PIECES * largest_piece(step)))
    kept_units = slots["kept"] + (TWICE if slots["kept"] else 0.0)
    estimate = MemoryEstimate(
        optimizer=resting,
        weights=work.weights + _held(step, "weights"),
        gradients=work.gradients + _held(step, "gradients"),
        saved_activations=slots["stash"] * chunk.stash + int(kept_units * chunk.kept),
        temporaries=buffers + work.temporaries + _batch(step) + _in_transit(step),
        host=host + slots["stash"] * chunk.offloaded,
    )
    return _update_apart(step, estimate) if step.layers_away else estimate


def estimated_bytes(step: TrainStep) -> int:
    """Bytes that `step` takes on a device."""
    return estimate_memory(step).device


def fixed_bytes(step: TrainStep) -> int:
    """Bytes that `step` takes on a device whatever its layers keep from forward to backward."""
    estimate = estimate_memory(step)
    return estimate.device - estimate.saved_activations


def state_sizes(step: TrainStep) -> tuple[int, int]:
    """Bytes of master weights and moments on one device, and for one device in pinned memory of the host, with the
    gradients that rest there."""
    host = pinned_state_bytes(step)
    gradients = away_gradient_bytes(step)
    passing = min(host, PIECES * max(PIECE_BYTES, largest_piece(step))) if step.filed is None else 0
    return state_bytes(step) - host + passing, host + gradients


def largest_piece(step: TrainStep) -> int:
    """Bytes of the largest piece that passes through the device: a row may be larger than a piece should be, and some
    rules take weights whole."""
    state, largest = step.abstract_state(), 0
    if not step.offloads:
        return 0
    weights = weight_states(state.master, state.optimizer)
    for number, (weight, update) in enumerate(zip(weights, step.weight_updates, strict=True)):
        local = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.sharding.shard_shape(a.shape), a.dtype), weight)
        rows, total = update.rows(local), local.master.shape[0]
        size = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(local))
        if number not in step.resident:
            largest = max(largest, size if rows is None else size // total * rows)
    return largest


class _Work(NamedTuple):
    """Bytes that live while a part of the model is differentiated."""

    weights: int
    gradients: int
    temporaries: int


def _in_head(step: TrainStep) -> _Work:
    """In the loss: the gathered head, its whole gradient, a tile's logits in float32, and their gradient.

    The first layer of the backward is gathered meanwhile; a pipeline has two at the same time. In tiles the head's
    gradient adds up from zeros as large as itself, which XLA keeps for every run of ticks with a loss; of a tied head
    or under tensor parallelism it makes them anew. One microbatch alone needs no gradients of the ends before they are
    made, nor its embedding any more.
    """
    config, plan = step.config, step.plan
    part = "embedding" if config.model.tied else "head"
    gathers = step.placements.compute.layout[part] != step.placements.storage.layout[part]
    head = sum(_each(step, step.placements.compute, part))
    ranks = plan.axes.tensor * (plan.axes.pipe if plan.pipe_ends == "shared" else 1)
    tokens = plan.microbatch_rows * config.data.sequence_length // plan.axes.context // plan.loss_tiles
    logits = 4 * tokens * padded_vocab(config.model) // ranks
    weights, gradients = _stored(step), _accumulated(step)
    if _alone(step):
        gradients = {"layers": gradients["layers"]}
        weights = {name: size for name, size in weights.items() if name != "embedding" or config.model.tied}
    layers = _gathered_layers(step) // (1 if plan.axes.pipe > 1 else 2)
    anew = config.model.tied or plan.axes.tensor > 1 or (_alone(step) and not gathers)
    keeps_zeros = plan.loss_tiles > 1 and not anew
    zeros = sum(run.head for loop in step.program.loops for run in loop.runs) if keeps_zeros else 0
    return _Work(
        weights=sum(weights.values()) + gathers * head + layers,
        gradients=sum(gradients.values()) + int((1 + zeros) * head * _widening(step)),
        temporaries=logits * (3 if plan.loss_tiles == 1 else 4) // 2,
    )


def _of_kinds(step: TrainStep, work: _Work) -> _Work:
    """Of a pipeline whose layers are of several kinds, and so no one loop: XLA takes what a slot reads out of the loop
    over ticks where a rank has one chunk, the weights of all slots, and begins a layer beside the head. Found in
    programs of 4 to 10 slots, of two kinds.
    """
    if step.plan.axes.pipe == 1 or step.plan.virtual_stages > 1 or len(step.order.stacks) == 1:
        return work
    both = _in_head(step).temporaries + _in_layer(step).temporaries
    return work._replace(weights=work.weights + _chunk(step), temporaries=both)


def _in_layer(step: TrainStep) -> _Work:
    """In a layer's backward: its weights and the next one's, its whole gradients, activations made again, cotangents.

    Tensor ranks gather the inputs of both halves of a layer, and the cotangents of their outputs. One microbatch alone
    needs no ends any more, nor the gradient of the embedding yet.
    """
    config, plan = step.config, step.plan
    again = 0
    for sizes, runs in _activations(step):
        made = {name: size // (plan.mlp_tiles if name in hidden_names() else 1) for name, size in sizes.items()}
        kept = min(sum(size for name, size in made.items() if run.activations[name] == "save") for run in runs)
        again = max(again, 2 * sum(made.values()) - kept)
    weights, gradients = _stored(step), _accumulated(step)
    if _alone(step):
        weights = {"layers": weights["layers"]}
        gradients = {name: size for name, size in gradients.items() if name != "embedding" or config.model.tied}
    # Weight by weight they leave for the host.
    going = 2 * _largest_matrix(step, step.placements.gradient) if step.layers_away else 0
    tokens = plan.microbatch_rows * config.data.sequence_length // plan.axes.context
    whole = tokens * config.model.embed * jnp.dtype(step.placements.compute.dtype).itemsize
    return _Work(
        weights=sum(weights.values()) + _gathered_layers(step),
        gradients=sum(gradients.values()) + (going or int(_layer(step) * _widening(step))),
        temporaries=again + (4 * whole if plan.axes.tensor > 1 else 0),
    )


def _leaving(step: TrainStep, work: _Work) -> _Work:
    """Where the state rests in files: all weights are arguments and all gradients results, from beginning to end.

    XLA holds the largest gradient of attention and the largest of the feed-forward once more, to turn them into the
    layout in which they leave: found in programs of 4 to 45 layers.
    """
    if _alone(step):
        work = work._replace(weights=sum(_stored(step).values()), gradients=sum(_accumulated(step).values()))
    gradients = _sizes(step, step.placements.gradient, LAYERS)
    stacks = [own_layers(gradients, kind) for kind in step.order.stacks]
    turned = sum(max(max(jax.tree.leaves(stack[half])) for stack in stacks) for half in ("attention", "mlp"))
    return work._replace(temporaries=work.temporaries + turned)


def _update_apart(step: TrainStep, estimate: MemoryEstimate) -> MemoryEstimate:
    """Where layers rest in host memory: pieces of the state and of gradients come when what a layer needs is gone."""
    passing = PIECES * max(PIECE_BYTES, largest_piece(step))
    others = estimate.device - min(passing, pinned_state_bytes(step))
    update = sum(_accumulated(step).values()) + passing + PIECES * _largest_matrix(step, step.placements.gradient)
    return estimate._replace(optimizer=estimate.optimizer - (estimate.device - others) + max(0, update - others))


def _largest_matrix(step: TrainStep, placement: Placement) -> int:
    """Bytes of a layer's largest weight."""
    return max(max(sizes) for sizes in _by_kind(step, placement).values())


def _in_transit(step: TrainStep) -> int:
    """On its way to the host or back: what is offloaded of the layer that computes, and of the next."""
    each = (
        sum(sizes.get(name, 0) for name, own in run.activations.items() if own == "offload")
        for sizes, runs in _activations(step)
        for run in runs
    )
    return IN_TRANSIT * max(each, default=0)


def _activations(step: TrainStep) -> list[tuple[dict[str, int], tuple[LayerRun, ...]]]:
    """Of each kind of layer, the bytes of its activations, and what its layers keep."""
    plan = step.plan
    shapes = layer_shapes(step.config, plan.axes, plan.microbatch_rows)
    runs = runs_by_kind(plan.runs, [slot.kind for slot in step.order.slots])
    return [(activation_bytes(shapes[kind]), own) for kind, own in runs.items()]


def _alone(step: TrainStep) -> bool:
    """Whether one microbatch goes through a step without a pipeline, so that nothing accumulates."""
    return step.plan.microbatches == 1 and step.plan.axes.pipe == 1


def _stored(step: TrainStep) -> dict[str, int]:
    """Bytes of storage weights by part; none where they are the master weights themselves."""
    storage, master = step.placements.storage, step.placements.optimizer
    same = not step.offloads and storage.dtype == master.dtype and storage.layout == master.layout
    return _staying(step, {part: 0 if same else sum(_each(step, storage, part)) for part in step.specs})


def _accumulated(step: TrainStep) -> dict[str, int]:
    """Bytes of accumulated gradients by part."""
    return _staying(step, {part: sum(_each(step, step.placements.gradient, part)) for part in step.specs})


def _staying(step: TrainStep, sizes: dict[str, int]) -> dict[str, int]:
    """`sizes` by part, less the layers that rest in host memory."""
    layers = sum(stack.rows for stack in step.order.stacks.values()) // step.plan.axes.pipe
    return sizes | {"layers": sizes["layers"] // layers * (layers - step.layers_away)}


def _layer(step: TrainStep) -> int:
    """The weights of a layer, of the largest kind, in compute placement."""
    return max(map(sum, _by_kind(step, step.placements.compute).values()))


def _by_kind(step: TrainStep, placement: Placement) -> dict[str, list[int]]:
    """Bytes of each weight of one layer of each kind on one device."""
    sizes = _sizes(step, placement, LAYERS)
    return {
        kind: [size * step.plan.axes.pipe // stack.rows for size in jax.tree.leaves(own_layers(sizes, kind))]
        for kind, stack in step.order.stacks.items()
    }


def _gathers_layers(step: TrainStep) -> bool:
    return step.placements.compute.layout["layers"] != step.placements.storage.layout["layers"]


def _gathered_layers(step: TrainStep) -> int:
    """The layer that computes, and the one that is gathered meanwhile; others are used where they rest."""
    coming = _largest_matrix(step, step.placements.optimizer) if step.layers_away else 0
    return coming + 2 * _layer(step) if coming or _gathers_layers(step) else 0


def _widening(step: TrainStep) -> float:
    """Bytes of a gradient for each byte of the weight in compute dtype."""
    return jnp.dtype(step.placements.gradient.dtype).itemsize / jnp.dtype(step.placements.compute.dtype).itemsize


def _held(step: TrainStep, what: str) -> int:
    """Chunks that are held whole, or their gradients."""
    if not step.program.holds:
        return 0
    width = 1 if what == "weights" else _widening(step)
    return int(width * _chunk(step) * step.program.slots[what])


def _chunk(step: TrainStep) -> int:
    """The weights of a chunk in compute placement, with rows that pad it."""
    sizes = {kind: sum(own) for kind, own in _by_kind(step, step.placements.compute).items()}
    return sum(sizes[kind] * stack.rows_per_chunk for kind, stack in step.order.stacks.items())


def _batch(step: TrainStep) -> int:
    return sum(
        prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in step.abstract_batch().values()
    )


def _each(step: TrainStep, placement: Placement, part: str) -> list[int]:
    """Bytes of each weight of `part` on one device."""
    return jax.tree.leaves(_sizes(step, placement, part))


def _sizes(step: TrainStep, placement: Placement, part: str) -> Tree:
    """The same by name."""
    width = jnp.dtype(placement.dtype).itemsize
    return map_specs(
        lambda spec, layout: width * prod(local_shape(spec.shape, layout, step.plan.axes)),
        step.specs[part],
        placement.layout[part],
    )
