"""The state before the first step where it does not rest on the device: made weight by weight.

A weight of all layers may be larger than the device's memory, so what rests in the host's memory is made there a piece
of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxpar.memory.streaming import HOST, PINNED, to_host
from jaxpar.mesh.parameters import initial_weight
from jaxpar.optim.rule import is_stacked
from jaxpar.training.state import TrainState
from jaxpar.training.weight_update import WeightState, joined, weight_states
from pallas_kernels.varying import vary_over

if TYPE_CHECKING:
    from jaxpar.training.step import TrainStep


def initial_by_weights(step: TrainStep, others: Callable[[], TrainState]) -> TrainState:
    """The state; for files, in place of each array that rests there what makes it.

    `others` gives the whole state, of which this takes all but master weights and moments.
    """
    rests = step.state_shardings
    small = rests._replace(master=None, optimizer=None)
    scalars = jax.jit(lambda: others()._replace(master=None, optimizer=None), out_shardings=small)()
    make = _in_files if step.filed is not None else _one_by_one
    states = [make(step, number, own) for number, own in enumerate(weight_states(rests.master, rests.optimizer))]
    average = step.config.optimizer.ema is not None
    master, optimizer = joined(states, jax.tree.structure(step.specs), average=average)
    return scalars._replace(master=master, optimizer=optimizer)


def weight_state(step: TrainStep, number: int, layers: jax.Array) -> WeightState:
    """A weight and its moments before the first step; of a stacked one, the rows of these layers."""
    path, spec = jax.tree_util.tree_leaves_with_path(step.specs)[number]
    name = jax.tree_util.keystr(step.order.without_kind(path))
    master = initial_weight(name, spec, step.config.run.seed, layers)
    return WeightState(master, step.weight_updates[number].optimizer.init(master))


def _numbers(step: TrainStep, number: int) -> np.ndarray:
    """The numbers of the layers in a stacked weight's rows, [rank, chunk, row]; of another weight none."""
    path, spec = jax.tree_util.tree_leaves_with_path(step.specs)[number]
    return step.order.stack_at(path).numbers if is_stacked(spec) else np.zeros((step.plan.axes.pipe, 0, 0), int)


def _in_files(step: TrainStep, number: int, rests: Any) -> Any:
    """What makes each array."""
    layers = _numbers(step, number).ravel()
    leaves, structure = jax.tree.flatten(rests)

    def make(place: int, where: Any) -> Any:
        one = lambda: jax.tree.leaves(weight_state(step, number, jnp.asarray(layers, jnp.int32)))[place]
        return jax.jit(one, out_shardings=where.with_memory_kind("device"))

    return structure.unflatten([make(place, where) for place, where in enumerate(leaves)])


def _one_by_one(step: TrainStep, number: int, rests: Any) -> Any:
    """The arrays, each where it rests."""
    spec, update = jax.tree.leaves(step.specs)[number], step.weight_updates[number]
    layers = jnp.asarray(_numbers(step, number).ravel(), jnp.int32)
    like = jax.eval_shape(partial(weight_state, step, number), layers)
    local = jax.tree.map(lambda a, where: jax.ShapeDtypeStruct(where.shard_shape(a.shape), a.dtype), like, rests)
    rows = update.rows(local)
    if rests.master.memory_kind == PINNED and is_stacked(spec) and rows is not None:
        return _in_pieces(step, number, rests, local, rows)
    on_device = jax.tree.map(lambda where: where.with_memory_kind("device"), rests)
    return jax.device_put(jax.jit(partial(weight_state, step, number), out_shardings=on_device)(layers), rests)


def _in_pieces(step: TrainStep, number: int, rests: Any, local: WeightState, rows: int) -> Any:
    """A stacked weight and its moments in host memory, so many rows of each device's part made at a time."""
    fill = filling(step, number, local)
    compiled = jax.jit(fill, static_argnums=2, donate_argnums=0, out_shardings=rests)
    total = local.master.shape[0]
    state = None
    for place in range(0, total, rows):
        state = compiled(state, jnp.int32(place), min(rows, total - place))
    return state


def filling(step: TrainStep, number: int, local: WeightState) -> Callable[[Any, jax.Array, int], WeightState]:
    """`(state in host memory, first row, rows) -> state` with these rows of each device's part made.

    In place of the state before the first rows there is None. `local` has the shapes of a device's part.
    """
    layers = _numbers(step, number).reshape(-1, local.master.shape[0])
    assert len(layers) == step.plan.axes.pipe, "rows of a stack are split over the pipeline alone"
    layout = weight_states(step.state_layout.master, step.state_layout.optimizer)[number]

    def write(state: Any, piece: WeightState, place: jax.Array) -> WeightState:
        leaves, structure = jax.tree.flatten(piece)
        if state is None:
            # XLA only allocates them, and one for all of a shape, to copy from, unless they differ.
            empty = [jnp.full(a.shape, order, a.dtype) for order, a in enumerate(jax.tree.leaves(local))]
            varying = [jax.typeof(a).manual_axis_type.varying for a in leaves]
            states = [to_host(vary_over(a, axes)) for a, axes in zip(empty, varying, strict=True)]
        else:
            states = jax.tree.leaves(state)
        pairs = zip(states, leaves, strict=True)
        return structure.unflatten(
            [lax.dynamic_update_slice_in_dim(a, jax.device_put(b, HOST), place, 0) for a, b in pairs]
        )

    def fill(state: Any, place: jax.Array, rows: int) -> WeightState:
        own = lax.dynamic_slice_in_dim(jnp.asarray(layers, jnp.int32), place, rows, 1).ravel()
        piece = lax.with_sharding_constraint(weight_state(step, number, own), step.shardings(layout))
        before = None if state is None else layout
        # Shapes alone do not say in which memory an array lies.
        return step.shard_map(write, (before, layout, PartitionSpec()), layout)(to_host(state), piece, place)

    return fill
